"""N-gram embeddings: a vector for the last n tokens together, added to the embedding of the token.

They give the first layer what attention would otherwise need a layer for: the current pair or triple of characters.
"""

import torch
from torch import Tensor, nn

from regard.nn.quantized import QuantizedEmbedding


class NGrams(nn.Module):
    """Tables for n = 2 ... ``longest``, exact while (V+1)^n fits into ``buckets``, hashed beyond."""

    def __init__(self, vocabulary: int, longest: int, buckets: int, width: int):
        super().__init__()
        self.vocabulary, self.longest = vocabulary, longest
        sizes = [min((vocabulary + 1) ** n, buckets) for n in range(2, longest + 1)]
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)

    def reset(self) -> None:
        """Zeros: the model starts as one without n-grams."""
        for table in self.tables:
            nn.init.zeros_(table.get_parameter("weight"))

    def forward(self, tokens: Tensor, phase: Tensor) -> Tensor:
        """``tokens`` [B, longest-1 + N], the N to embed after their predecessors; ``phase`` [B|1, N] of those N.

        Predecessors before the first token of a document count as the extra token V, so that neither another packed
        document nor an earlier state has an influence.
        """
        before = self.longest - 1
        count = phase.shape[1]
        index = tokens[:, before:]
        total = torch.zeros((), device=tokens.device)
        for n, table in enumerate(self.tables, start=2):
            assert isinstance(table, nn.Embedding | QuantizedEmbedding)
            back = n - 1
            previous = tokens[:, before - back : before - back + count].masked_fill(phase < back, self.vocabulary)
            index = index * (self.vocabulary + 1) + previous
            total = total + table(self._bucket(index, n, table.num_embeddings))
        return total

    def _bucket(self, index: Tensor, n: int, size: int) -> Tensor:
        if (self.vocabulary + 1) ** n <= size:
            return index
        return (index * 0x9E3779B1 % 0x7FFFFFFF) % size  # Fibonacci hashing: spreads similar indices
