"""A recurrent language model (Mikolov et al. 2010): each token updates a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, distributed, nn

from regard.attention import AnySlots, Packed, Slots
from regard.config import option
from regard.errors import UserError
from regard.models.base import LanguageModel, ModelConfig, State
from regard.nn.linear import Linear
from regard.nn.norm import NormConfig, RMSNormConfig
from regard.nn.recurrent import MODULES, Recurrent, RecurrentState


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig, kind="recurrent"):
    """Sizes and parts of a recurrent language model."""

    cell: Literal["rnn", "lstm", "gru"] = option("lstm", "recurrent cell: rnn (tanh), lstm or gru")
    vocabulary: int = option(65, "size of the vocabulary", least=1)
    context: int = option(256, "length of truncated back-propagation through time, in tokens", least=1)
    layers: int = option(2, "number of recurrent layers", least=1)
    width: int = option(256, "width of the model and of each layer's state", least=1)
    dropout: float = option(0.0, "dropout on embeddings and on the output of each layer", least=0, below=1)
    tied: bool = option(True, "share the embedding with the output head")
    bias: bool = option(True, "biases in the cells")
    residual: bool = option(True, "add each layer's output to its input")
    carry: bool = option(
        False, "in training, start from the last state of the previous batch; needs data.order = consecutive"
    )
    norm: NormConfig = field(default_factory=RMSNormConfig)

    def check(self) -> None:
        super().check()
        if self.cell not in MODULES:
            raise ValueError(f"there is no cell {self.cell!r}; choose from {', '.join(MODULES)}")

    def make(self) -> RecurrentModel:
        return RecurrentModel(self)


class RecurrentBlock(nn.Module):
    """x + recurrent(norm(x)); the residual sum is optional."""

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.norm = config.norm.build(config.width)
        self.recurrent = Recurrent(config.cell, config.width, config.width, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)
        self.residual = config.residual

    def forward(
        self, x: Tensor, state: RecurrentState | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        out, after = self.recurrent(self.norm(x), lengths, state)
        return (x + self.drop(out) if self.residual else self.drop(out)), after


class Carried(nn.Module):
    """A state carried from batch to batch: truncated back-propagation through time (Werbos 1990).

    The buffers are the last states of the rows of the previous update, so that checkpoints contain them. They have as
    many rows as its micro-batches together, the oldest micro-batch first, and none before the first update. They carry
    no gradient.
    """

    hidden: Tensor
    cell: Tensor | None

    def __init__(self, layers: int, width: int, *, with_cell: bool):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(0, layers, width))
        self.register_buffer("cell", torch.zeros(0, layers, width) if with_cell else None)

    def initial(self, batch: int, micro_batches: int, *, starts: bool) -> list[RecurrentState] | None:
        """The first state of each layer; None if the batch ``starts`` a text, or has another number of rows."""
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            raise UserError(
                "a carried state is saved by one process only; train in one process, or set --model.carry false"
            )
        if not starts and not len(self.hidden):
            raise UserError(
                "carry needs consecutive windows, but these are drawn at random; "
                "set --data.order consecutive, or --model.carry false"
            )
        if starts or len(self.hidden) != batch * micro_batches:
            return None
        # Copies, because `store` overwrites the buffers before the backward pass.
        oldest = RecurrentState(self.hidden, self.cell).map(lambda part: part[:batch].clone())
        return [oldest.map(lambda part, i=i: part[:, i : i + 1]) for i in range(self.hidden.shape[1])]

    @torch.no_grad()
    def store(self, states: list[RecurrentState], micro_batches: int) -> None:
        """Store the last state of each layer in place of the oldest micro-batch."""
        batch = len(states[0].hidden)
        self.resize(batch * micro_batches)
        buffers = RecurrentState(self.hidden, self.cell)
        if micro_batches > 1:
            buffers.copy_(buffers.map(lambda part: part.roll(-batch, dims=0)))
        for i, state in enumerate(states):
            buffers.map(lambda part, i=i: part[-batch:, i : i + 1]).copy_(state)

    def resize(self, rows: int) -> None:
        """Reallocate the buffers for ``rows`` rows."""
        if rows != len(self.hidden):
            self.hidden = self.hidden.new_zeros(rows, *self.hidden.shape[1:])
            self.cell = None if self.cell is None else torch.zeros_like(self.hidden)


def documents(slots: Packed) -> tuple[Tensor, Tensor]:
    """For every token of packed rows [B, N]: the index of its document, over all rows, and its position in it.

    ``rows[document, place] = packed`` gives each document a row, and ``rows[document, place]`` packs them again. The
    padding of a row counts as one more document.

    >>> documents(Packed.of([[2, 1], [3]]))
    (tensor([[0, 0, 1],
            [2, 2, 2]]), tensor([[0, 1, 0],
            [0, 1, 2]]))
    """
    segment = slots.segment
    place = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    first = torch.ones_like(segment, dtype=torch.bool)
    first[:, 1:] = segment[:, 1:] != segment[:, :-1]
    document = first.flatten().cumsum(0).view_as(segment) - 1
    return document, place - torch.where(first, place, 0).cummax(dim=1).values


class RecurrentModel(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    graphable = False  # the kernels of whole layers allocate their outputs
    compilable = False  # the kernels of whole recurrent layers are opaque to a compiler

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.carries_state = config.carry
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.drop = nn.Dropout(config.dropout)
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
            x, state = self.run_block(block, x, before, lengths)
            after.append(state)
        return self.norm(x), after

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty state for ``batch`` rows. Its size does not depend on the length, so ``capacity`` has no effect."""
        position = torch.zeros(batch, dtype=torch.long, device=self.embed.weight.device)
        return State(
            position, tuple(cast(RecurrentBlock, block).recurrent.start(batch) for block in self.blocks), fixed=fixed
        )

    def consume(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        x, after = self._run(tokens, state.layers, lengths)
        state.position.add_(tokens.shape[1] if lengths is None else lengths)
        for kept, new in zip(state.layers, after, strict=True):
            kept.copy_(new)
        return x, state._replace(used=state.used + tokens.shape[1])

    def prepare_load(self, tensors: Mapping[str, Sized]) -> None:
        """Resize the carried states to those of the checkpoint."""
        if self.carried is not None and (saved := tensors.get("carried.hidden")) is not None:
            self.carried.resize(len(saved))

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *args, **settings):
        self.prepare_load(state_dict)
        return super().load_state_dict(state_dict, *args, **settings)
