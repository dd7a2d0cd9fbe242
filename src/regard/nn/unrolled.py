"""A recurrent layer step by step, where a part of each step's input is known only when the step before is done.

Attention that asks with the latest state is such a case, and so is feeding a step's outcome to the next one. What is
known beforehand is multiplied for all steps at once; a step is left with the products that must wait and as few other
operations as the equations allow: on a CPU each of them costs as much as its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.recurrent import Kind, Memo, Recurrent, RecurrentState, Weights


def rnn(of_input: Tensor, memo: Memo, u: Tensor, d: Tensor | None) -> Memo:
    """``layers.recurrent.rnn_cell`` with Wx + b + d given; u is U transposed."""
    return (torch.addmm(of_input, memo[0], u).tanh(),)


def lstm(of_input: Tensor, memo: Memo, u: Tensor, d: Tensor | None) -> Memo:
    """``layers.recurrent.lstm_cell`` with Wx + b + d given; u is U transposed."""
    h, c = memo
    width = h.shape[1]
    two, g, o = torch.addmm(of_input, h, u).split([2 * width, width, width], dim=1)
    i, f = two.sigmoid().chunk(2, dim=1)
    c = torch.addcmul(f * c, i, g.tanh())
    return o.sigmoid() * c.tanh(), c


def gru(of_input: Tensor, memo: Memo, u: Tensor, d: Tensor | None) -> Memo:
    """``layers.recurrent.gru_cell`` with Wx + b given; u is U transposed."""
    (h,) = memo
    cut = [2 * h.shape[1], h.shape[1]]
    two, n = of_input.split(cut, dim=1)
    two_of_h, n_of_h = (h @ u if d is None else torch.addmm(d, h, u)).split(cut, dim=1)
    r, z = (two + two_of_h).sigmoid().chunk(2, dim=1)
    return (torch.lerp(torch.addcmul(n, r, n_of_h).tanh(), h, z),)


STEPS: dict[Kind, Callable[[Tensor, Memo, Tensor, Tensor | None], Memo]] = {"rnn": rnn, "lstm": lstm, "gru": gru}


class Unrolled:
    """``layers`` in one direction over inputs [known; late]: ``known`` [B, T, E] is here, ``late`` [B, I-E] is not yet.

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
        parts = [part.to(products.dtype) for part in state if part is not None]  # autocast's, if there is one
        self.memos: list[Memo] = [tuple(part[:, i] for part in parts) for i in range(layers.layers)]

    @property
    def top(self) -> Tensor:
        """The last layer's hidden state [B, W]."""
        return self.memos[-1][0]

    def step(self, late: Tensor) -> Tensor:
        """One more step: the last layer's new hidden state."""
        of_input = torch.addmm(next(self.known), late, self.late)
        for i, (u, d) in enumerate(self.own):
            if i:
                lower = self.memos[i - 1][0]
                of_input = F.linear(F.dropout(lower, self.dropout) if self.dropout else lower, *self.below[i - 1])
            self.memos[i] = self.run(of_input, self.memos[i], u, d)
        return self.top

    def state(self) -> RecurrentState:
        """What the layers remember by now."""
        h, *c = (torch.stack(parts, dim=1) for parts in zip(*self.memos, strict=True))
        return RecurrentState(h, c[0] if c else None)


def _joined(w: Weights, kind: Kind) -> Weights:
    """Both biases in one, except where the GRU's reset gate comes between them."""
    return w if w.b is None or w.d is None or kind == "gru" else w._replace(b=w.b + w.d, d=None)
