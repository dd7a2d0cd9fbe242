"""Recurrent layers as their equations say, token by token: the definition that the kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.nn.recurrent import CellState, Kind, Recurrent, RecurrentState, Weights


def rnn(x: Tensor, state: CellState, w: Weights) -> CellState:
    """h' = tanh(Wx + b + Uh + d)."""
    (h,) = state
    return (torch.tanh(F.linear(x, w.w, w.b) + F.linear(h, w.u, w.d)),)


def lstm(x: Tensor, state: CellState, w: Weights) -> CellState:
    """c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh c'."""
    h, c = state
    i, f, g, o = (F.linear(x, w.w, w.b) + F.linear(h, w.u, w.d)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(x: Tensor, state: CellState, w: Weights) -> CellState:
    """h' = (1 - z) ⊙ n + z ⊙ h, n = tanh(Wx + b + r ⊙ (Uh + d))."""
    (h,) = state
    of_x, of_h = F.linear(x, w.w, w.b).chunk(3, dim=-1), F.linear(h, w.u, w.d).chunk(3, dim=-1)
    r, z = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
    n = torch.tanh(of_x[2] + r * of_h[2])
    return ((1 - z) * n + z * h,)


EQUATIONS: dict[Kind, Callable[[Tensor, CellState, Weights], CellState]] = {"rnn": rnn, "lstm": lstm, "gru": gru}


def by_token(
    layers: Recurrent, x: Tensor, lengths: Tensor | None = None, state: RecurrentState | None = None
) -> tuple[Tensor, RecurrentState]:
    """What ``layers(x, lengths, state)`` has to return."""
    state = layers.start(x.shape[0]) if state is None else state
    states: list[CellState] = []
    for layer in range(layers.layers):
        outs = []
        for direction in range(layers.directions):
            first = tuple(part[:, layer * layers.directions + direction] for part in state if part is not None)
            out, last = _direction(layers, x, lengths, first, layers.weights(layer, direction), direction == 1)
            outs.append(out)
            states.append(last)
        x = torch.cat(outs, dim=-1)
        if layer < layers.layers - 1:
            x = F.dropout(x, layers.dropout, layers.training)
    return x, RecurrentState(*(torch.stack(parts, dim=1) for parts in zip(*states, strict=True)))


def _direction(
    layers: Recurrent, x: Tensor, lengths: Tensor | None, state: CellState, w: Weights, backward: bool
) -> tuple[Tensor, CellState]:
    cell, places = EQUATIONS[layers.kind], range(x.shape[1])
    outs = {}
    for t in reversed(places) if backward else places:
        new = cell(x[:, t], state, w)
        if lengths is None:
            state, outs[t] = new, new[0]
        else:  # padding keeps the state
            real = (t < lengths)[:, None]
            state = tuple(torch.where(real, after, before) for after, before in zip(new, state, strict=True))
            outs[t] = torch.where(real, state[0], 0)
    return torch.stack([outs[t] for t in places], dim=1), state
