"""Constructors that do unusual things, recorded and run again; and those that cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import Model
from regard.parallel.pieces import Cut
from regard.parallel.sharded_build import fill, named_tensors, recorded

CPU = torch.device("cpu")
CONSTANT = torch.tensor([0.5, 2.0, -1.0])


class Anything(Model):
    """A model whose constructor is a function."""

    layer: Any
    weight: Any
    stacked: Any
    hidden: Any
    first: Any
    copy: Any

    def __init__(self, make: Callable[[Anything], None]):
        nn.Module.__init__(self)
        self.cuts = {}
        make(self)


def built(make: Callable[[Anything], None]) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """The tensors of the constructor, those of its recording, and why it could not be recorded."""
    torch.manual_seed(11)
    plain = Anything(make)
    torch.manual_seed(11)
    model, initial = recorded(lambda given: Anything(make))
    fill(model, initial, CPU)
    return named_tensors(plain), named_tensors(model), initial.reason


def scaled(model: Anything) -> None:
    model.weight = nn.Parameter(torch.randn(40, 30) * 30**-0.5)
    model.other = nn.Parameter(torch.rand(7, dtype=torch.float64).log().float())
    model.order = nn.Buffer(torch.randperm(9))


def overwritten(model: Anything) -> None:
    model.layer = nn.Linear(20, 30)
    model.stacked = nn.Linear(20, 60, bias=False)
    with torch.no_grad():
        model.layer.weight[10:20].normal_(std=0.1)  # the other rows stay
        for part in model.stacked.weight.split(20):
            nn.init.xavier_uniform_(part)
        model.layer.bias.mul_(3).add_(model.layer.weight[:, 0])  # reads a weight that changes afterwards
        model.layer.weight.mul_(0.5)
        model.stacked.weight[:, 1::2].normal_()  # not contiguous
        nn.init.orthogonal_(model.stacked.weight[:20])


def generators(model: Anything) -> None:
    own = torch.Generator().manual_seed(5)
    model.a = nn.Buffer(torch.randn(5, 5, generator=own))
    model.b = nn.Parameter(torch.randn(5, 5))
    model.c = nn.Parameter(torch.empty(5, 5).normal_(generator=own))
    own.manual_seed(5)
    model.d = nn.Buffer(torch.randn(5, 5, generator=own, device="cpu"), persistent=False)
    torch.manual_seed(99)
    model.e = nn.Parameter(torch.randn(5, 5))
    torch.manual_seed(99)
    model.f = nn.Parameter(torch.randn(5, 5))


def data(model: Anything) -> None:
    model.a = nn.Buffer(torch.tensor([1.0, 2.0, 3.0]) * CONSTANT)
    assert (model.a.is_cpu, model.a.is_meta, model.a.device.type) == (True, False, "cpu")
    model.b = nn.Buffer(torch.from_numpy(np.linspace(0, 1, 5)).float())
    model.c = nn.Parameter(CONSTANT.new_tensor([4.0, 5.0]) + model.a.new_tensor(7.0))
    model.d = nn.Buffer(torch.as_tensor(np.arange(4), device=model.a.device))
    model.e = nn.Buffer(torch.arange(12.0).view(3, 4).t()[1:].cumsum(0))
    model.e[0, 1] = 8.0
    model.f = nn.Buffer(torch.eye(3)[torch.tensor([2, 0, 1])])


def tied(model: Anything) -> None:
    model.embed = nn.Embedding(12, 8)
    model.unembed = nn.Linear(8, 12)
    model.unembed.weight = model.embed.weight
    table = torch.arange(3)
    model.x, model.y = nn.Buffer(table), nn.Buffer(table)


def kept_elsewhere(model: Anything) -> None:
    model.weight = nn.Parameter(torch.randn(3))
    model.hidden = [torch.randn(4)]  # neither a parameter nor a buffer
    model.copy = nn.Buffer(model.hidden[0] * 2)


@pytest.mark.parametrize("make", [scaled, overwritten, generators, data, tied, kept_elsewhere])
def test_it_is_recorded(make: Callable[[Anything], None]) -> None:
    theirs, ours, reason = built(make)
    assert reason == ""
    assert list(ours) == list(theirs)
    for name, x in ours.items():
        assert x.dtype == theirs[name].dtype
        assert x.is_contiguous() == theirs[name].is_contiguous()
        assert torch.equal(x, theirs[name]), name
        assert [key for key, y in ours.items() if y is x] == [key for key, y in theirs.items() if y is theirs[name]]


def test_tensors_that_are_neither_parameters_nor_buffers_get_their_values() -> None:
    model, initial = recorded(lambda given: Anything(kept_elsewhere))
    assert isinstance(model, Anything)
    fill(model, initial, CPU)
    assert torch.equal(model.hidden[0] * 2, model.copy)


def value(model: Anything) -> None:
    model.weight = nn.Parameter(torch.full((4,), torch.rand(()).item()))


def state(model: Anything) -> None:
    with torch.random.fork_rng():
        model.a = nn.Parameter(torch.randn(4))
    model.b = nn.Parameter(torch.randn(4))


def outside(model: Anything) -> None:
    model.weight = nn.Parameter(CONSTANT)


def view(model: Anything) -> None:
    model.weight = nn.Parameter(torch.randn(4))
    model.first = [model.weight.detach()[:1]]


@pytest.mark.parametrize(
    ("make", "reason"), [(value, "item"), (state, "earlier state"), (outside, "weight"), (view, "keeps a view")]
)
def test_it_cannot_be_recorded_and_is_built_whole(make: Callable[[Anything], None], reason: str) -> None:
    theirs, ours, found = built(make)
    assert reason in found
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_an_error_of_the_constructor_is_its_own() -> None:
    def refuse(given: Mapping[str, Tensor] | None) -> Model:
        raise UserError("no such model")

    before = torch.get_rng_state()
    with pytest.raises(UserError, match="no such model"):
        recorded(refuse)
    assert torch.equal(torch.get_rng_state(), before)


def test_slices_of_a_parameter_are_cut_from_the_whole() -> None:
    def make(model: Anything) -> None:
        model.layer = nn.Linear(6, 12)

    torch.manual_seed(1)
    plain = Anything(make)
    torch.manual_seed(1)
    model, initial = recorded(lambda given: Anything(make))
    assert isinstance(model, Anything)
    cut = Cut((12, 6), 0, ((2, 4), (8, 10)), "tensor")
    model.layer.weight = nn.Parameter(cut.of(model.layer.weight.detach()))
    with pytest.raises(RuntimeError, match=r"layer\.weight is not as the constructor made it"):
        fill(model, initial, CPU)
    model.cuts["layer.weight"] = cut
    fill(model, initial, CPU)
    assert torch.equal(model.layer.weight, plain.layer.weight[[2, 3, 8, 9]])
    assert torch.equal(model.layer.bias, plain.layer.bias)


class Counted(Mapping[str, Tensor]):
    """Tensors that count how often they are read."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors, self.reads = tensors, list[str]()

    def __getitem__(self, name: str) -> Tensor:
        self.reads.append(name)
        return self.tensors[name].clone()

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_given_tensors_are_read_for_their_shapes_and_then_one_by_one() -> None:
    def build(given: Mapping[str, Tensor] | None) -> Model:
        assert given is not None
        model = Anything(overwritten)
        with torch.no_grad():
            for name, x in model.state_dict().items():
                if name in given and given[name].shape == x.shape:
                    x.copy_(given[name])
        return model

    given = Counted({"layer.weight": torch.ones(30, 20), "stacked.weight": torch.ones(60, 20, dtype=torch.float64)})
    torch.manual_seed(11)
    model, initial = recorded(build, given)
    assert given.reads == ["layer.weight", "stacked.weight"]
    given.reads.clear()
    fill(model, initial, CPU)
    assert sorted(given.reads) == ["layer.weight", "stacked.weight"]
    torch.manual_seed(11)
    plain = build(Counted(given.tensors))
    assert all(torch.equal(x, y) for x, y in zip(named_tensors(model).values(), plain.parameters(), strict=True))
