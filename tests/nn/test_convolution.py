"""Causal convolution: PyTorch's own, whole or in pieces through a ring."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Packed
from regard.nn.convolution import CausalConvolution

sizes = st.integers(1, 4)


@st.composite
def convolutions(draw: st.DrawFn) -> CausalConvolution:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    kernel, dilation = draw(sizes), draw(sizes)
    return CausalConvolution(
        draw(sizes), draw(sizes), kernel=kernel, dilation=dilation, bias=draw(st.booleans())
    ).double()


def pytorchs(layer: CausalConvolution, x: Tensor) -> Tensor:
    weight = layer.mix.weight.unflatten(1, (layer.kernel, layer.inputs)).transpose(1, 2)  # [O, I, kernel]
    padded = F.pad(x.transpose(1, 2), (layer.reach, 0))
    return F.conv1d(padded, weight, layer.mix.bias, dilation=layer.dilation).transpose(1, 2)


@given(convolutions(), sizes, st.integers(1, 12))
def test_it_is_pytorchs_convolution(layer: CausalConvolution, rows: int, count: int) -> None:
    x = torch.randn(rows, count, layer.inputs, dtype=torch.float64, requires_grad=True)
    got, want = layer(x), pytorchs(layer, x)
    torch.testing.assert_close(got, want)
    up, into = torch.randn_like(want), [x, *layer.parameters()]
    of_ours, of_theirs = (torch.autograd.grad((out * up).sum(), into) for out in (got, want))
    for mine, other in zip(of_ours, of_theirs, strict=True):
        torch.testing.assert_close(mine, other)


@given(convolutions(), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_a_packed_document_sees_only_itself(layer: CausalConvolution, documents: list[int]) -> None:
    x = torch.randn(1, sum(documents), layer.inputs, dtype=torch.float64)
    alone = [layer(part) for part in x.split(documents, dim=1)]
    torch.testing.assert_close(layer(x, Packed.of([documents]).phase), torch.cat(alone, dim=1))


@given(convolutions(), sizes, st.lists(st.integers(1, 4), min_size=1, max_size=8), st.booleans(), st.data())
def test_steps_equal_the_whole(
    layer: CausalConvolution, rows: int, cut: list[int], ragged: bool, data: st.DataObject
) -> None:
    past, position = layer.start(rows), torch.zeros(rows, dtype=torch.long)
    address = past.data_ptr()
    given_inputs, got = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for count in cut:
        x = torch.randn(rows, count, layer.inputs, dtype=torch.float64)
        held = [count] * rows
        if ragged:
            held = data.draw(st.lists(st.integers(0, count), min_size=rows, max_size=rows))
        lengths = torch.tensor(held) if ragged else None
        out = layer.step(x, past, position, lengths)
        position += torch.tensor(held)
        for b, n in enumerate(held):
            given_inputs[b].append(x[b, :n])
            got[b].append(out[b, :n])
    assert past.data_ptr() == address
    for b in range(rows):
        torch.testing.assert_close(torch.cat(got[b]), layer(torch.cat(given_inputs[b])[None])[0])
