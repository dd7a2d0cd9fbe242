"""Recurrent layers run step by step, where a part of each step's input depends on the previous step.

Attention with the latest state as query is such a case, and input feeding is another. The known part of the inputs is
multiplied for all steps at once; a step computes the remaining products with as few operations as possible, because on
a CPU the overhead of an operation is as large as its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.recurrent import CellState, Kind, Recurrent, RecurrentState, Weights


def rnn(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """``nn.recurrent.rnn_cell`` with Wx + b + d given; u is U transposed."""
    return (torch.addmm(of_input, state[0], u).tanh(),)


def lstm(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """``nn.recurrent.lstm_cell`` with Wx + b + d given; u is U transposed."""
    h, c = state
    width = h.shape[1]
    two, g, o = torch.addmm(of_input, h, u).split([2 * width, width, width], dim=1)
    i, f = two.sigmoid().chunk(2, dim=1)
    c = torch.addcmul(f * c, i, g.tanh())
    return o.sigmoid() * c.tanh(), c


def gru(of_input: Tensor, state: CellState, u: Tensor, d: Tensor | None) -> CellState:
    """``nn.recurrent.gru_cell`` with Wx + b given; u is U transposed."""
    (h,) = state
    cut = [2 * h.shape[1], h.shape[1]]
    two, n = of_input.split(cut, dim=1)
    two_of_h, n_of_h = (h @ u if d is None else torch.addmm(d, h, u)).split(cut, dim=1)
    r, z = (two + two_of_h).sigmoid().chunk(2, dim=1)
    return (torch.lerp(torch.addcmul(n, r, n_of_h).tanh(), h, z),)


STEPS: dict[Kind, Callable[[Tensor, CellState, Tensor, Tensor | None], CellState]] = {
    "rnn": rnn,
    "lstm": lstm,
    "gru": gru,
}


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
        self.run, self.dropout = STEPS[layers.kind], layers.dropout if layers.training else 0.0
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
        h, *c = (torch.stack(parts, dim=1) for parts in zip(*self.states, strict=True))
        return RecurrentState(h, c[0] if c else None)


def _joined(w: Weights, kind: Kind) -> Weights:
    """The sum of both biases as one; not for the GRU, whose reset gate applies between them."""
    return w if w.b is None or w.d is None or kind == "gru" else w._replace(b=w.b + w.d, d=None)
