"""Attention layers with tensors for masks, as tutorials and ``torch.nn`` have them, on the one attention operator.

A mask is a boolean tensor that is True where a query may see a key, of shape [Q, K], [B, Q, K] or [B, 1 or H, Q, K];
[B, 1, 1, K] hides padding. None hides nothing.
"""

from torch import Tensor, nn

from regard.attention import Softmax, attend
from regard.nn.feedforward import FeedForward
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm


class MultiHeadAttention(nn.Module):
    """softmax(q kᵀ/√d) v in ``heads`` heads (Vaswani et al. 2017, sec. 3.2.2).

    >>> import torch
    >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
    >>> MultiHeadAttention(16, heads=4)(torch.randn(2, 5, 16), causal).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0, *, bias: bool = True):
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model {d_model} is not divisible by {heads} heads")
        self.heads = heads
        self.q, self.k, self.v, self.out = (Linear(d_model, d_model, bias=bias) for _ in range(4))
        self.mechanism = Softmax(dropout=dropout)

    def forward(self, q: Tensor, *rest: Tensor | None) -> Tensor:
        """``(x)``, ``(x, mask)``, ``(q, k, v)`` or ``(q, k, v, mask)``, each sequence [B, N, C]."""
        k, v, mask = (q, q, *rest, None)[:3] if len(rest) < 2 else (*rest, None)[:3]
        assert k is not None
        assert v is not None
        queries, keys, values = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.q, q), (self.k, k), (self.v, v))
        )
        mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
        return self.out(attend(queries, keys, values, mask, mechanism=self.mechanism).values.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network with ReLU, each followed by dropout, residual sum and LayerNorm."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads, dropout)
        self.feedforward = FeedForward(d_model, d_ff, nn.functional.relu, bias=True, dropout=dropout)
        self.norm_attention, self.norm_feedforward = LayerNorm(d_model), LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """src [B, S, C] to [B, S, C]."""
        x = self.norm_attention(src + self.drop(self.attention(src, src_mask)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))


class DecoderLayer(EncoderLayer):
    """An encoder layer with cross-attention to ``memory`` between its two parts."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float = 0.0):
        super().__init__(d_model, heads, d_ff, dropout)
        self.cross, self.norm_cross = MultiHeadAttention(d_model, heads, dropout), LayerNorm(d_model)

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """x [B, T, C] and memory [B, S, C] to [B, T, C]."""
        x = self.norm_attention(x + self.drop(self.attention(x, tgt_mask)))
        x = self.norm_cross(x + self.drop(self.cross(x, memory, memory, src_mask)))
        return self.norm_feedforward(x + self.drop(self.feedforward(x)))
