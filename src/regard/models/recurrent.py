"""A recurrent language model (Mikolov et al. 2010): each token updates a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention import AnySlots, Packed, Slots
from regard.config import option
from regard.errors import UserError
from regard.models.base import LanguageModel, ModelConfig, State, check_dropouts, check_sizes
from regard.models.carry import Carried
from regard.nn import Linear, NormConfig, Recurrent, RecurrentState, RMSNormConfig
from regard.nn.dropout import dropout
from regard.nn.packing import documents, latest
from regard.nn.recurrent import MODULES


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig, kind="recurrent"):
    """Sizes and parts of a recurrent language model."""

    cell: Literal["rnn", "lstm", "gru"] = option("lstm", "recurrent cell: rnn (tanh), lstm or gru")
    vocabulary: int = option(65, "size of the vocabulary")
    context: int = option(256, "length of truncated back-propagation through time, in tokens")
    layers: int = option(2, "number of recurrent layers")
    width: int = option(256, "width of the model and of each layer's state")
    dropout: float = option(0.0, "dropout on embeddings and on the output of each layer")
    tied: bool = option(True, "share the embedding with the output head")
    bias: bool = option(True, "biases in the cells")
    residual: bool = option(True, "add each layer's output to its input")
    carry: bool = option(
        False, "in training, start from the last state of the previous batch; needs data.order = consecutive"
    )
    norm: NormConfig = field(default_factory=RMSNormConfig)

    def check(self) -> None:
        if self.cell not in MODULES:
            raise ValueError(f"there is no cell {self.cell!r}; choose from {', '.join(MODULES)}")
        check_sizes(self, "vocabulary", "context", "layers", "width")
        check_dropouts(self, "dropout")

    def make(self) -> RecurrentModel:
        return RecurrentModel(self)


class RecurrentBlock(nn.Module):
    """x + recurrent(norm(x)); the residual sum is optional."""

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.norm = config.norm.build(config.width)
        self.recurrent = Recurrent(config.cell, config.width, config.width, bias=config.bias)
        self.drop = dropout(config.dropout)
        self.residual = config.residual

    def forward(
        self, x: Tensor, state: RecurrentState | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        out, after = self.recurrent(self.norm(x), lengths, state)
        return (x + self.drop(out) if self.residual else self.drop(out)), after


class RecurrentModel(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    graphable = False  # the kernels of whole layers allocate their outputs
    compilable = False  # the kernels of whole recurrent layers are opaque to a compiler

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.carries_state = config.carry
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.drop = dropout(config.dropout)
        self.blocks = nn.ModuleList(RecurrentBlock(config) for _ in range(config.layers))
        self.norm = config.norm.build(config.width)
        self.unembed = Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.unembed.weight = self.embed.weight
        self.carried = Carried(config.layers, config.width, with_cell=config.cell == "lstm") if config.carry else None
        self.reset()

    def reset(self) -> None:
        """Embeddings as GPT-2's; cells as PyTorch's, but the forget gates of an LSTM start open."""
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.unembed.weight, std=0.02)
        for block in self.blocks:
            if self.config.cell == "lstm":
                cast(RecurrentBlock, block).recurrent.reset_biases()

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Everything but the head: [B, N, C]. ``slots`` describes padding or packing. Default: one unpadded row.

        Each document of a packed row starts with an empty state. Padding comes last, where no real token depends on it.
        """
        if isinstance(slots, Slots):
            raise UserError("a recurrent model reads rows from left to right; give Range, Padded or Packed slots")
        if isinstance(slots, Packed):
            document, place = documents(slots)
            rows = tokens.new_zeros(int(document.max()) + 1, int(place.max()) + 1)
            rows[document, place] = tokens
            return self._run(rows)[0][document, place]
        if self.carried is None or not self.training:
            return self._run(tokens)[0]
        initial = self.carried.initial(tokens.shape[0], self.micro_batches, starts=slots is not None)
        x, states = self._run(tokens, initial)
        self.carried.store(states, self.micro_batches)
        return x

    def _run(
        self, tokens: Tensor, states: Sequence[RecurrentState] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, list[RecurrentState]]:
        x = self.drop(self.embed(tokens))
        after: list[RecurrentState] = []
        for i, block in enumerate(self.blocks):
            before = None if states is None else states[i]
            if self.checkpointing and self.training:
                x, state = cast(
                    tuple[Tensor, RecurrentState], checkpoint(block, x, before, lengths, use_reentrant=False)
                )
            else:
                x, state = block(x, before, lengths)
            after.append(state)
        return self.norm(x), after

    def head(self, x: Tensor) -> Tensor:
        """Features to logits."""
        return self.unembed(x)

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty state for ``batch`` rows. Its size does not depend on the length, so ``capacity`` has no effect."""
        position = torch.zeros(batch, dtype=torch.long, device=self.embed.weight.device)
        return State(
            position, tuple(cast(RecurrentBlock, block).recurrent.start(batch) for block in self.blocks), fixed=fixed
        )

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Consume tokens [B, T] after those in ``state``; return logits [B, T, V] and the state, updated in place.

        ``lengths`` [B] is the number of real tokens per row; the others are ignored. ``last``: only the logits after
        each row's last real token, [B, 1, V].
        """
        x, after = self._run(tokens, state.layers, lengths)
        state.position.add_(tokens.shape[1] if lengths is None else lengths)
        for kept, new in zip(state.layers, after, strict=True):
            kept.hidden.copy_(new.hidden)
            if kept.cell is not None and new.cell is not None:
                kept.cell.copy_(new.cell)
        if last:  # a head over a large vocabulary costs more than the layers
            x = latest(x, lengths)
        return self.head(x), state._replace(used=state.used + tokens.shape[1])

    def prepare_load(self, tensors: Mapping[str, Tensor]) -> None:
        """Resize the carried states to those of the checkpoint."""
        if self.carried is not None and (saved := tensors.get("carried.hidden")) is not None:
            self.carried.resize(len(saved))

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **settings: Any) -> Any:
        self.prepare_load(state_dict)
        return super().load_state_dict(state_dict, *args, **settings)
