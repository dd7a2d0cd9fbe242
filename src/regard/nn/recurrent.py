"""Recurrent layers: each token updates a state.

The equations below are the definition (``fused=False``); by default PyTorch's kernels compute whole layers.
tests/nn/test_recurrent.py compares the two, forward and backward.
"""

from __future__ import annotations

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
    cell: Tensor | None  # [B, L*dirs, W], LSTM only


class Weights(NamedTuple):
    """The weights of one layer and direction, gates stacked: W, b for the input and U, d for the hidden state."""

    w: Tensor  # [gates*W, I]
    u: Tensor  # [gates*W, W]
    b: Tensor | None = None  # [gates*W]
    d: Tensor | None = None  # [gates*W]


CellState = tuple[Tensor, ...]  # of one layer and direction: (h,), with LSTM (h, c); each [B, W]


def rnn_cell(x: Tensor, cell_state: CellState, w: Weights) -> CellState:
    """h' = tanh(Wx + b + Uh + d) (Elman 1990)."""
    (h,) = cell_state
    return (torch.tanh(F.linear(x, w.w, w.b) + F.linear(h, w.u, w.d)),)


def lstm_cell(x: Tensor, cell_state: CellState, w: Weights) -> CellState:
    """c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh c' (Hochreiter & Schmidhuber 1997; the forget gate f: Gers et al. 2000)."""
    h, c = cell_state
    i, f, g, o = (F.linear(x, w.w, w.b) + F.linear(h, w.u, w.d)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(x: Tensor, cell_state: CellState, w: Weights) -> CellState:
    """h' = (1 - z) ⊙ n + z ⊙ h (Cho et al. 2014, eqs. 5-8), the reset gate r after the product.

    The paper has n = tanh(Wx + U(r ⊙ h)); PyTorch and cuDNN have n = tanh(Wx + b + r ⊙ (Uh + d)), which needs one
    product with h for all gates instead of two dependent ones.
    """
    (h,) = cell_state
    of_x, of_h = F.linear(x, w.w, w.b).chunk(3, dim=-1), F.linear(h, w.u, w.d).chunk(3, dim=-1)
    r, z = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
    n = torch.tanh(of_x[2] + r * of_h[2])
    return ((1 - z) * n + z * h,)


CELLS: dict[Kind, Callable[[Tensor, CellState, Weights], CellState]] = {
    "rnn": rnn_cell,
    "lstm": lstm_cell,
    "gru": gru_cell,
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
        self, x: Tensor, lengths: Tensor | None = None, state: RecurrentState | None = None, *, fused: bool = True
    ) -> tuple[Tensor, RecurrentState]:
        """x [B, N, I] to outputs [B, N, W*dirs] and the state after each row's last token. One step is N = 1."""
        state = self.start(x.shape[0]) if state is None else state
        if not fused:
            return self._by_layer(x, lengths, state, self._by_token)
        if lengths is None:
            return self._whole(x, state)
        return self._packed(x, lengths, state) if x.is_cuda else self._by_layer(x, lengths, state, self._fused)

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
        return out, _hidden(*(part.transpose(0, 1) for part in (last if self.kind == "lstm" else (last,))))

    def _packed(self, x: Tensor, lengths: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """All layers in one call over packed rows, by cuDNN; on a CPU its backward pass is slower than `_fused`.

        Packing needs at least one token per row, so the result of an empty row is discarded.
        """
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        out, last = self._whole(packed, state)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        some = (lengths > 0)[:, None, None]
        parts = (torch.where(some, n, m) for n, m in zip(last, state, strict=True) if n is not None and m is not None)
        return torch.where(some, out, 0), _hidden(*parts)

    def _by_layer(
        self, x: Tensor, lengths: Tensor | None, state: RecurrentState, run: Callable
    ) -> tuple[Tensor, RecurrentState]:
        """Each layer and direction in turn, by ``run``."""
        states: list[CellState] = []
        for layer in range(self.layers):
            outs = []
            for direction in range(self.directions):
                i = layer * self.directions + direction
                before = tuple(part[:, i] for part in state if part is not None)
                out, cell_state = run(x, lengths, before, self.weights(layer, direction), direction == 1)
                outs.append(out)
                states.append(cell_state)
            x = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
            if layer < self.layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, _hidden(*(torch.stack(parts, dim=1) for parts in zip(*states, strict=True)))

    def _by_token(
        self, x: Tensor, lengths: Tensor | None, cell_state: CellState, w: Weights, backward: bool
    ) -> tuple[Tensor, CellState]:
        """One layer and direction, token by token: the definition."""
        cell, places = CELLS[self.kind], range(x.shape[1])
        outs = {}
        for t in reversed(places) if backward else places:
            new = cell(x[:, t], cell_state, w)
            if lengths is None:
                cell_state, outs[t] = new, new[0]
            else:  # padding keeps the state
                real = (t < lengths)[:, None]
                cell_state = tuple(
                    torch.where(real, after, before) for after, before in zip(new, cell_state, strict=True)
                )
                outs[t] = torch.where(real, cell_state[0], 0)
        return torch.stack([outs[t] for t in places], dim=1), cell_state

    def _fused(
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


def _hidden(hidden: Tensor, cell: Tensor | None = None) -> RecurrentState:
    return RecurrentState(hidden, cell)
