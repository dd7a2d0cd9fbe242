"""Recurrent layers: the equations are PyTorch's kernels, forward and backward, however rows end."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from recurrent_definition import EQUATIONS, by_token
from regard.nn.recurrent import Kind, Recurrent, RecurrentState, Weights

KINDS: tuple[Kind, ...] = ("rnn", "lstm", "gru")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


@st.composite
def layers(draw: st.DrawFn, dtype: torch.dtype) -> Recurrent:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    return Recurrent(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 3)),
        bidirectional=draw(st.booleans()),
        bias=draw(st.booleans()),
    ).to(dtype)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Recurrent, Tensor, Tensor | None, RecurrentState | None]:
    """A layer and what it is given; rows end anywhere, at once too."""
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    layer = draw(layers(dtype))
    rows, count = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    held = draw(st.none() | st.lists(st.integers(0, count), min_size=rows, max_size=rows))
    x = torch.randn(rows, count, layer.cells.input_size, dtype=dtype, requires_grad=True)
    state = wild(layer, rows) if draw(st.booleans()) else None
    return layer, x, None if held is None else torch.tensor(held), state


def wild(layer: Recurrent, rows: int) -> RecurrentState:
    hidden, cell = layer.start(rows)
    cell = None if cell is None else torch.randn_like(cell).requires_grad_()
    return RecurrentState(torch.randn_like(hidden).requires_grad_(), cell)


def results(layer: Recurrent, x: Tensor, state: RecurrentState | None, run: Any) -> dict[str, Tensor]:
    """Outputs, states, and the gradient of all of them, unevenly weighed, with respect to all that went in."""
    out, last = run()
    found = {"outputs": out, "hidden": last.hidden} | ({} if last.cell is None else {"cell": last.cell})
    g = torch.Generator().manual_seed(1)
    loss = sum((part * torch.randn(part.shape, generator=g, dtype=part.dtype)).sum() for part in found.values())
    into = {"x": x, **dict(layer.named_parameters())}
    into |= (
        {} if state is None else {f"first {name}": part for name, part in state._asdict().items() if part is not None}
    )
    gradients = torch.autograd.grad(loss, list(into.values()), materialize_grads=True)  # type: ignore[arg-type]
    return found | dict(zip((f"gradient of {name}" for name in into), gradients, strict=True))


def agree(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        allowed = TOLERANCE[tensor.dtype] * max(1.0, tensor.abs().max().item() if tensor.numel() else 0.0)
        torch.testing.assert_close(
            got[name], tensor, atol=allowed, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@given(cases())
def test_the_kernels_are_the_equations(case: tuple[Recurrent, Tensor, Tensor | None, RecurrentState | None]) -> None:
    layer, x, lengths, state = case
    want = results(layer, x, state, lambda: by_token(layer, x, lengths, state))
    agree(results(layer, x, state, lambda: layer(x, lengths, state)), want)
    if lengths is not None:  # the way of CUDA, which is right on every device
        first = layer.start(len(x)) if state is None else state
        agree(results(layer, x, state, lambda: layer._packed(x, lengths, first)), want)


@given(cases(), st.integers(0, 4))
def test_a_row_is_what_it_is_alone(
    case: tuple[Recurrent, Tensor, Tensor | None, RecurrentState | None], more: int
) -> None:
    """Neither its neighbours nor what stands after its end matter; beyond its end there is nothing."""
    layer, x, lengths, state = case
    state = layer.start(len(x)) if state is None else state
    held = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    longer = torch.cat((x, 9 * torch.randn(len(x), more, x.shape[2], dtype=x.dtype)), dim=1)
    out, last = layer(longer, held, state)
    for b, n in enumerate(held.tolist()):
        assert not out[b, n:].any()
        mine = RecurrentState(*(None if part is None else part[b : b + 1] for part in state))  # type: ignore[arg-type]
        if n:
            alone, mine = layer(x[b : b + 1, :n], None, mine)
            torch.testing.assert_close(out[b, :n], alone[0], atol=TOLERANCE[x.dtype], rtol=0)
        for got, want in zip(last, mine, strict=True):
            if got is not None and want is not None:
                torch.testing.assert_close(got[b], want[0], atol=TOLERANCE[x.dtype], rtol=0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_after_the_other(kind: Kind, fused: bool) -> None:
    layer, x = Recurrent(kind, 3, 4, 2).double(), torch.randn(2, 7, 3).double()
    run = layer if fused else partial(by_token, layer)
    whole, end = run(x)
    state, outs = layer.start(2), []
    for t in range(7):
        out, state = run(x[:, t : t + 1], None, state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole)
    for got, want in zip(state, end, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_each_cell_is_pytorchs(kind: Kind) -> None:
    theirs: Any = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](3, 4).double()
    weights = Weights(theirs.weight_ih, theirs.weight_hh, theirs.bias_ih, theirs.bias_hh)
    x, h, c = torch.randn(2, 3).double(), torch.randn(2, 4).double(), torch.randn(2, 4).double()
    memo = (h, c) if kind == "lstm" else (h,)
    want = theirs(x, memo if kind == "lstm" else h)
    for got, expected in zip(EQUATIONS[kind](x, memo, weights), want if kind == "lstm" else (want,), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("kind", "theirs"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_state_dicts_of_pytorch_go_both_ways(kind: Kind, theirs: Any, bidirectional: bool) -> None:
    ours = Recurrent(kind, 3, 4, 2, bidirectional=bidirectional)
    other, back = (theirs(3, 4, 2, batch_first=True, bidirectional=bidirectional) for _ in range(2))
    ours.cells.load_state_dict(other.state_dict())
    back.load_state_dict(ours.cells.state_dict())
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 5])
    want, _ = other(x)
    for got in (ours(x)[0], ours(x, lengths)[0], by_token(ours, x)[0], back(x)[0]):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_between_layers_and_in_training_only(kind: Kind) -> None:
    """With all of it dropped the second layer sees zeros; a single layer has nothing to drop."""
    layer, x, lengths = Recurrent(kind, 3, 4, 2, dropout=1.0), torch.randn(2, 5, 3), torch.tensor([5, 3])
    second = Recurrent(kind, 4, 4)
    second.cells.load_state_dict({n.replace("l1", "l0"): v for n, v in layer.cells.state_dict().items() if "l1" in n})
    blind, kept = second(torch.zeros(2, 5, 4))[0], layer.eval()(x)[0]
    layer.train()
    torch.testing.assert_close(layer(x)[0], blind)
    torch.testing.assert_close(by_token(layer, x)[0], blind)
    torch.testing.assert_close(layer(x, lengths)[0][1, :3], blind[1, :3])
    assert not torch.allclose(kept, blind)
    single = Recurrent(kind, 3, 4, dropout=1.0)
    torch.testing.assert_close(single.train()(x)[0], single.eval()(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_16_bits(kind: Kind) -> None:
    """Under autocast a state in either number format goes in, and a gradient comes out."""
    layer, x = Recurrent(kind, 3, 4, 2, bidirectional=True), torch.randn(2, 5, 3, requires_grad=True)
    want, _ = layer(x, lengths := torch.tensor([5, 2]))
    with torch.autocast("cpu", torch.bfloat16):
        out, state = layer(x, lengths)
        torch.testing.assert_close(out.float(), want, atol=0.05, rtol=0)
        for first in (state, layer.start(2)):
            assert layer(x, lengths, first)[0].isfinite().all()
            assert layer(x, None, first)[0].isfinite().all()
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.any()
