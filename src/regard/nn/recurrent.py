"""Recurrent layers: each token updates a state. PyTorch's kernels compute whole layers.

``Unrolled`` runs layers step by step, where a part of each step's input depends on the previous step: attention with
the latest state as query is such a case, and input feeding is another. The known part of the inputs is multiplied for
all steps at once; a step computes the remaining products with as few operations as possible, because on a CPU the
overhead of an operation is as large as its arithmetic.

tests/nn/test_recurrent.py compares both with the equations, forward and backward.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Kind = Literal["rnn", "lstm", "gru"]
MODULES: dict[Kind, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CLOSED = 1e4  # added to a gate, makes its sigmoid exactly 0 or 1 in every number format


class RecurrentState(NamedTuple):
    """The state of all layers. The forward and backward directions of a layer are adjacent."""

    hidden: Tensor  # [B, L*dirs, W]
    cell: Tensor | None = None  # [B, L*dirs, W], LSTM only

    def map(self, function: Callable[[Tensor], Tensor]) -> "RecurrentState":
        """The same function of each part."""
        return RecurrentState(*(function(part) for part in self if part is not None))

    def copy_(self, other: "RecurrentState") -> None:
        """Overwrite this state in place."""
        for kept, new in zip(self, other, strict=True):
            if kept is not None and new is not None:
                kept.copy_(new)


class Weights(NamedTuple):
    """The weights of one layer and direction, gates stacked: W, b for the input and U, d for the hidden state."""

    w: Tensor  # [gates*W, I]
    u: Tensor  # [gates*W, W]
    b: Tensor | None = None  # [gates*W]
    d: Tensor | None = None  # [gates*W]


CellState = tuple[Tensor, ...]  # of one layer and direction: (h,), with LSTM (h, c); each [B, W]


def rnn(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """h' = tanh(Wx + b + Uh + d) (Elman 1990); ``of_input`` is Wx + b + d, u is U transposed."""
    return (torch.addmm(of_input, state[0], u).tanh(),)


def lstm(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh c' (Hochreiter & Schmidhuber 1997; the forget gate f: Gers et al. 2000).

    ``of_input`` is Wx + b + d, u is U transposed; the gates i, f and o are logistic, g is tanh.
    """
    h, c = state
    width = h.shape[1]
    two, g, o = torch.addmm(of_input, h, u).split([2 * width, width, width], dim=1)
    i, f = two.sigmoid().chunk(2, dim=1)
    c = torch.addcmul(f * c, i, g.tanh())
    return o.sigmoid() * c.tanh(), c


def gru(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """h' = (1 - z) ⊙ n + z ⊙ h (Cho et al. 2014, eqs. 5-8), the reset gate r after the product.

    The paper has n = tanh(Wx + U(r ⊙ h)); PyTorch and cuDNN have n = tanh(Wx + b + r ⊙ (Uh + d)), which needs one
    product with h for all gates instead of two dependent ones. ``of_input`` is Wx + b, u is U transposed.
    """
    (h,) = state
    cut = [2 * h.shape[1], h.shape[1]]
    two, n = of_input.split(cut, dim=1)
    two_of_h, n_of_h = (h @ u if d is None else torch.addmm(d, h, u)).split(cut, dim=1)
    r, z = (two + two_of_h).sigmoid().chunk(2, dim=1)
    return (torch.lerp(torch.addcmul(n, r, n_of_h).tanh(), h, z),)


CELLS: dict[Kind, Callable[[Tensor, CellState, Tensor, Tensor | None], CellState]] = {
    "rnn": rnn,
    "lstm": lstm,
    "gru": gru,
}


class Recurrent(nn.Module):
    """Stacked recurrent layers, in one direction or both; dropout between layers.

    Rows may end early: ``lengths`` [B]. Outputs beyond a row's end are zero, its state is that after its last token.
    The weights belong to ``cells``, a module of ``torch.nn``, and have its names.
    """

    def __init__(
        self,
        kind: Kind,
        inputs: int,
        width: int,
        layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.kind: Kind = kind
        self.width, self.layers, self.directions, self.dropout = width, layers, 1 + bidirectional, dropout
        between = dropout if layers > 1 else 0.0  # torch warns of dropout if there is one layer
        self.cells = MODULES[kind](
            inputs, width, layers, bias=bias, batch_first=True, dropout=between, bidirectional=bidirectional
        )

    @torch.no_grad()
    def reset_biases(self) -> None:
        """Biases 0; the forget gates of an LSTM start open, with bias 1 (Jozefowicz et al. 2015)."""
        for name, parameter in self.cells.named_parameters():
            if parameter.ndim < 2:
                nn.init.zeros_(parameter)
                if self.kind == "lstm" and name.startswith("bias_ih"):
                    nn.init.ones_(parameter[self.width : 2 * self.width])

    @torch.no_grad()
    def reset_matrices(self) -> None:
        """Orthogonal recurrent matrices, so that a state neither vanishes nor explodes at first (Saxe et al. 2014).

        Input matrices keep the variance of their inputs (Glorot & Bengio 2010). Each gate is initialized by itself.
        """
        for name, parameter in self.cells.named_parameters():
            if parameter.ndim == 2:
                init = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_
                for gate in parameter.split(self.width):
                    init(gate)

    def start(self, batch: int) -> RecurrentState:
        """The state before the first token."""
        zeros = self.weights(0, 0).u.new_zeros(batch, self.layers * self.directions, self.width)
        return RecurrentState(zeros, zeros.clone() if self.kind == "lstm" else None)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """x [B, N, I] to outputs [B, N, W*dirs] and the state after each row's last token. One step is N = 1."""
        state = self.start(x.shape[0]) if state is None else state
        if lengths is None:
            return self._whole(x, state)
        return self._packed(x, lengths, state) if x.is_cuda else self._by_layer(x, lengths, state)

    def weights(self, layer: int, direction: int) -> Weights:
        """The weights of one layer and direction, by PyTorch's names."""
        end = f"_l{layer}" + ("_reverse" if direction else "")
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.cells.bias else 2]
        return Weights(*(getattr(self.cells, name + end) for name in names))

    def _whole(self, x: Tensor | PackedSequence, state: RecurrentState) -> tuple[Any, RecurrentState]:
        """All layers in one call, in the type of the weights: under autocast cuDNN would use float16."""
        own = self.weights(0, 0).u.dtype
        cell_state = [part.transpose(0, 1).contiguous().to(own) for part in state if part is not None]
        with torch.autocast(cell_state[0].device.type, enabled=False):
            out, last = self.cells(x.to(own), tuple(cell_state) if self.kind == "lstm" else cell_state[0])
        return out, RecurrentState(*(part.transpose(0, 1) for part in (last if self.kind == "lstm" else (last,))))

    def _packed(self, x: Tensor, lengths: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """All layers in one call over packed rows, by cuDNN; on a CPU its backward pass is slower than `_layer`.

        Packing needs at least one token per row, so the result of an empty row is discarded.
        """
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        out, last = self._whole(packed, state)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        some = (lengths > 0)[:, None, None]
        parts = (torch.where(some, n, m) for n, m in zip(last, state, strict=True) if n is not None and m is not None)
        return torch.where(some, out, 0), RecurrentState(*parts)

    def _by_layer(self, x: Tensor, lengths: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Each layer and direction in turn."""
        states: list[CellState] = []
        for layer in range(self.layers):
            outs = []
            for direction in range(self.directions):
                i = layer * self.directions + direction
                before = tuple(part[:, i] for part in state if part is not None)
                out, cell_state = self._layer(x, lengths, before, self.weights(layer, direction), direction == 1)
                outs.append(out)
                states.append(cell_state)
            x = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
            if layer < self.layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, RecurrentState(*(torch.stack(parts, dim=1) for parts in zip(*states, strict=True)))

    def _layer(
        self, x: Tensor, lengths: Tensor, cell_state: CellState, w: Weights, backward: bool
    ) -> tuple[Tensor, CellState]:
        """One layer and direction by PyTorch's kernel, over rows that end early, without packing them.

        The backward direction runs forward over each row reversed within its length. Padding comes last, so no output
        depends on it, and h is the output at a row's end. The cell c of an LSTM is no output: an additional input marks
        padding, which closes the input gate and opens the forget gate, and c is unchanged.
        """
        place = torch.arange(x.shape[1], device=x.device)
        real = place < lengths[:, None]  # [B, N]
        reversed_ = torch.where(real, lengths[:, None] - 1 - place, place)[:, :, None]
        own = w.u.dtype  # also under autocast: oneDNN has no bfloat16 LSTM for CPUs without AVX-512
        x = (x.gather(1, reversed_.expand_as(x)) if backward else x).to(own)
        flat = [part for part in w if part is not None]
        initial = tuple(part[None].to(own).contiguous() for part in cell_state)
        settings = (w.b is not None, 1, 0.0, self.training, False, True)
        with torch.autocast(x.device.type, enabled=False):
            if self.kind == "lstm":
                x = torch.cat((x, ~real[:, :, None]), dim=-1)
                hold = w.w.new_tensor([-CLOSED, CLOSED, 0.0, 0.0]).repeat_interleave(self.width)[:, None]  # i, f, g, o
                flat[0] = torch.cat((w.w, hold), dim=1)
                out, _, last = torch.lstm(x, initial, flat, *settings)
                rest: CellState = (last[0],)
            else:
                out, _ = (torch.gru if self.kind == "gru" else torch.rnn_tanh)(x, initial[0], flat, *settings)
                rest = ()
        ends = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.width)
        h = torch.where((lengths > 0)[:, None], out.gather(1, ends)[:, 0], cell_state[0])
        out = out.gather(1, reversed_.expand_as(out)) if backward else out
        return torch.where(real[:, :, None], out, 0), (h, *rest)


class Unrolled:
    """``layers`` in one direction over inputs [known; late]; ``late`` [B, I-E] is given step by step.

    >>> layers = Recurrent("gru", 3 + 2, 4)
    >>> known, late = torch.randn(1, 6, 3), torch.randn(1, 6, 2)
    >>> loop = Unrolled(layers, known, layers.start(1))
    >>> outs = torch.stack([loop.step(late[:, t]) for t in range(6)], dim=1)
    >>> torch.allclose(outs, layers(torch.cat((known, late), dim=-1))[0], atol=1e-5)
    True
    """

    def __init__(self, layers: Recurrent, known: Tensor, state: RecurrentState):
        self.run, self.dropout = CELLS[layers.kind], layers.dropout if layers.training else 0.0
        first, *upper = (_joined(layers.weights(i, 0), layers.kind) for i in range(layers.layers))
        early = known.shape[-1]
        products = F.linear(known.transpose(0, 1), first.w[:, :early], first.b)  # [T, B, gates*W]
        self.known = iter(products.unbind(0))
        self.late = first.w[:, early:].t()
        self.below = [(w.w, w.b) for w in upper]
        self.own = [(w.u.t(), w.d) for w in (first, *upper)]
        parts = [part.to(products.dtype) for part in state if part is not None]  # of autocast
        self.states: list[CellState] = [tuple(part[:, i] for part in parts) for i in range(layers.layers)]

    @property
    def top(self) -> Tensor:
        """The last layer's hidden state [B, W]."""
        return self.states[-1][0]

    def step(self, late: Tensor) -> Tensor:
        """Run one step; return the last layer's hidden state."""
        of_input = torch.addmm(next(self.known), late, self.late)
        for i, (u, d) in enumerate(self.own):
            if i:
                lower = self.states[i - 1][0]
                of_input = F.linear(F.dropout(lower, self.dropout) if self.dropout else lower, *self.below[i - 1])
            self.states[i] = self.run(of_input, self.states[i], u, d)
        return self.top

    def state(self) -> RecurrentState:
        """The current state of all layers."""
        return RecurrentState(*(torch.stack(parts, dim=1) for parts in zip(*self.states, strict=True)))


def _joined(w: Weights, kind: Kind) -> Weights:
    """The sum of both biases as one; not for the GRU, whose reset gate applies between them."""
    return w if w.b is None or w.d is None or kind == "gru" else w._replace(b=w.b + w.d, d=None)
