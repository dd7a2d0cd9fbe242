"""Bridges: how a recurrent decoder reads the source, as one vector of the whole sentence or by attention.

A bridge is the decoder with its view of the source. ``remember`` prepares the encoder's outputs, ``begin`` gives the
first state, and ``forward`` decodes any number of tokens, in training as well as in generation.
Sizes: R rows are decoded from B sentences, beam j of sentence b in row b·beams + j; S source and T target tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.attention import Additive, Dot, Full, General, Padded, Range, Softmax
from regard.config import Choice, option
from regard.nn.linear import Linear
from regard.nn.recurrent import Kind, Recurrent, RecurrentState, Unrolled


class BridgeSpec(NamedTuple):
    """The sizes of a bridge; the encoder's annotations are as wide as the decoder's state."""

    cell: Kind
    embedding: int
    width: int
    layers: int
    dropout: float


class Annotated(NamedTuple):
    """An encoded source, for attention."""

    keys: Tensor  # [B, S, A]
    values: Tensor  # [B, S, W], the annotations
    lengths: Tensor  # [B]


Shared = TypeVar("Shared")  # what all rows of a source have in common: one vector [B, W], or the whole source


class DecoderState(NamedTuple):
    """The state of each decoded row."""

    hidden: RecurrentState  # [R, L, W]
    fed: Tensor | None = None  # [R, C], the latest attentional vector, for input feeding


class Bridge(nn.Module, Generic[Shared]):
    """Base class. ``out`` is the width of the features for the output layer."""

    out: int

    def remember(self, annotations: Tensor, lengths: Tensor, last: RecurrentState) -> Shared:
        """What all rows of a source share, from annotations [B, S, W] and the encoder's last states [B, L, W]."""
        raise NotImplementedError

    def begin(self, last: RecurrentState) -> DecoderState:
        """The first state: each layer starts with the encoder layer's last state (Sutskever et al. 2014, sec. 2)."""
        return DecoderState(last)

    def forward(self, x: Tensor, shared: Shared, own: DecoderState) -> tuple[Tensor, DecoderState]:
        """Embedded tokens [R, T, E] to features [R, T, C], and the state after them."""
        raise NotImplementedError


class BridgeConfig(Choice):
    """How the decoder reads the source."""

    def build(self, sizes: BridgeSpec) -> Bridge:
        raise NotImplementedError


class Maxout(nn.Module):
    """The maximum of two linear maps of all inputs, unit by unit (Bahdanau et al. 2015, appendix A.2.2)."""

    def __init__(self, inputs: int, out: int):
        super().__init__()
        self.both = Linear(inputs, 2 * out)

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.maximum(*self.both(torch.cat(parts, dim=-1)).chunk(2, dim=-1))


class Fixed(Bridge[Tensor]):
    """The encoder's last state is the context vector c.

    It initializes the decoder; ``every_step`` it also enters the input, h_t = f(h_{t-1}, y_{t-1}, c), and the output
    layer, g(h_t, y_{t-1}, c) (Cho et al. 2014, sec. 2.2). Otherwise the output layer takes h_t alone
    (Sutskever et al. 2014).
    """

    def __init__(self, sizes: BridgeSpec, every_step: bool):
        super().__init__()
        context = sizes.width if every_step else 0
        self.cells = Recurrent(sizes.cell, sizes.embedding + context, sizes.width, sizes.layers, dropout=sizes.dropout)
        self.out = sizes.embedding if every_step else sizes.width
        self.readout = Maxout(sizes.width + sizes.embedding + context, self.out) if every_step else None

    def remember(self, annotations: Tensor, lengths: Tensor, last: RecurrentState) -> Tensor:
        return last.hidden[:, -1]  # [B, W]

    def forward(self, x: Tensor, shared: Tensor, own: DecoderState) -> tuple[Tensor, DecoderState]:
        if self.readout is None:
            out, hidden = self.cells(x, state=own.hidden)
            return out, DecoderState(hidden)
        rows, count = x.shape[:2]
        context = shared.repeat_interleave(rows // shared.shape[0], dim=0)[:, None].expand(-1, count, -1)
        out, hidden = self.cells(torch.cat((x, context), dim=-1), state=own.hidden)
        return self.readout(out, x, context), DecoderState(hidden)


class Bahdanau(Bridge[Annotated]):
    """Additive attention by the PREVIOUS state, then the step: h_t = f(h_{t-1}, y_{t-1}, c_t), with c_t = Σ_j α_tj a_j.

    The output layer is given g(h_t, y_{t-1}, c_t) (Bahdanau et al. 2015, sec. 3.1 and appendix A). With several layers
    the last one is the query. The first state is tanh(W a + b) of the encoder's last states in both directions, so that
    a one-directional encoder works too; the paper (A.2.2) takes the backward direction only.
    """

    def __init__(self, sizes: BridgeSpec, hidden: int):
        super().__init__()
        width = sizes.width
        self.first = Linear(width, width)  # h_0 = tanh(W a + b)
        self.project = Linear(width, hidden, bias=False)  # U a, once for all steps
        self.mechanism = Softmax(Additive(width, None, hidden))
        self.cells = Recurrent(sizes.cell, sizes.embedding + width, width, sizes.layers, dropout=sizes.dropout)
        self.out = sizes.embedding
        self.readout = Maxout(width + sizes.embedding + width, self.out)

    def remember(self, annotations: Tensor, lengths: Tensor, last: RecurrentState) -> Annotated:
        return Annotated(self.project(annotations), annotations, lengths)

    def begin(self, last: RecurrentState) -> DecoderState:
        return DecoderState(last._replace(hidden=self.first(last.hidden).tanh()))

    def forward(self, x: Tensor, shared: Annotated, own: DecoderState) -> tuple[Tensor, DecoderState]:
        attend = source_attention(self.mechanism, shared, rows=x.shape[0])
        loop = Unrolled(self.cells, x, own.hidden)
        states, contexts = [], []
        for _ in range(x.shape[1]):
            contexts.append(attend(loop.top))
            states.append(loop.step(contexts[-1]))
        return self.readout(torch.stack(states, 1), x, torch.stack(contexts, 1)), DecoderState(loop.state())


class Luong(Bridge[Annotated]):
    """Attention by the CURRENT state, and the attentional vector h̃_t = tanh(W [c_t; h_t]) (Luong et al. 2015, eq. 5).

    ``feeding``: h̃_t is part of the next step's input (sec. 3.3), which informs it of past alignments. Without it
    the attention of all steps is computed at once.
    """

    def __init__(self, sizes: BridgeSpec, score: Literal["dot", "general"], feeding: bool):
        super().__init__()
        width, self.out = sizes.width, sizes.embedding
        self.feeding = feeding
        self.mechanism = Softmax(Dot() if score == "dot" else General(width, width), scale=1.0)
        fed = self.out if feeding else 0
        self.cells = Recurrent(sizes.cell, sizes.embedding + fed, width, sizes.layers, dropout=sizes.dropout)
        self.attentional = Linear(2 * width, self.out, bias=False)

    def remember(self, annotations: Tensor, lengths: Tensor, last: RecurrentState) -> Annotated:
        return Annotated(annotations, annotations, lengths)

    def begin(self, last: RecurrentState) -> DecoderState:
        return DecoderState(last, last.hidden.new_zeros(last.hidden.shape[0], self.out) if self.feeding else None)

    def forward(self, x: Tensor, shared: Annotated, own: DecoderState) -> tuple[Tensor, DecoderState]:
        rows, count = x.shape[:2]
        if own.fed is None:
            out, hidden = self.cells(x, state=own.hidden)
            contexts = source_attention(self.mechanism, shared, rows, count)(out)
            return self._attentional(contexts, out), DecoderState(hidden)
        attend = source_attention(self.mechanism, shared, rows)
        loop = Unrolled(self.cells, x, own.hidden)
        outputs, fed = [], own.fed
        for _ in range(count):
            state = loop.step(fed)
            fed = self._attentional(attend(state), state)
            outputs.append(fed)
        return torch.stack(outputs, dim=1), DecoderState(loop.state(), fed)

    def _attentional(self, context: Tensor, state: Tensor) -> Tensor:
        return self.attentional(torch.cat((context, state), dim=-1)).tanh()


def source_attention(mechanism: Softmax, source: Annotated, rows: int, count: int = 1) -> Callable[[Tensor], Tensor]:
    """States [R, W] or [R, T, W] to contexts of the same shape; plan and views are made once for all steps."""
    sources, places = source.values.shape[:2]
    keys, values = source.keys[:, None], source.values[:, None]  # [B, 1, S, .]
    queries = Range(rows // sources * count)  # the beams of a source share its keys
    plan = mechanism.plan(Full(), queries, Padded(source.lengths, places), like=values)

    def attend(states: Tensor) -> Tensor:
        q = states.reshape(sources, 1, -1, states.shape[-1])
        return mechanism(q, keys, values, plan).values.reshape(states.shape)

    return attend


@dataclass(frozen=True)
class FixedConfig(BridgeConfig, kind="fixed"):
    """No attention: the encoder's last state is the context vector."""

    every_step: bool = option(True, "the context vector enters every step, not just the first state")

    def build(self, sizes: BridgeSpec) -> Bridge:
        return Fixed(sizes, self.every_step)


@dataclass(frozen=True)
class BahdanauConfig(BridgeConfig, kind="bahdanau"):
    """Additive attention by the previous state."""

    hidden: int | None = option(None, "width inside the score (default: the model's width)", least=1)

    def build(self, sizes: BridgeSpec) -> Bridge:
        return Bahdanau(sizes, sizes.width if self.hidden is None else self.hidden)


@dataclass(frozen=True)
class LuongConfig(BridgeConfig, kind="luong"):
    """Multiplicative attention by the current state."""

    score: Literal["dot", "general"] = option("general", "the score of a state and an annotation")
    feeding: bool = option(True, "the attentional vector of a step is part of the next step's input")

    def build(self, sizes: BridgeSpec) -> Bridge:
        return Luong(sizes, self.score, self.feeding)
