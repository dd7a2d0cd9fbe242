"""Expert parallelism on 2 and 4 gloo ranks against one process: gradients, losses, and the bytes that travel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from expert_rank import CASES, LANES, Case, build, gradients
from safetensors.torch import load_file
from torch import Tensor

from forked_ranks import run_ranks
from regard.errors import UserError
from regard.nn.experts import moe
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts
from regard.parallel import apply
from regard.parallel.world import World
from regard.train import MuonConfig

WIDTH = 16
PROGRAM = Path(__file__).with_name("expert_rank.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What the ranks of each number of processes have written."""
    folders = {size: tmp_path_factory.mktemp(f"ranks-{size}") for size in CASES}
    for size, folder in folders.items():
        run_ranks(PROGRAM, size, folder)
    return folders


def one_process(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, list[float]], list[Tensor]]:
    """The model with the gradients of all lanes, the losses, and the experts of each pass through a mixture."""
    chosen: list[Tensor] = []
    route = moe.route

    def watched(*arguments: Any) -> Any:
        found = route(*arguments)
        chosen.append(found.experts)
        return found

    monkeypatch.setattr(moe, "route", watched)
    model = build(case)
    return model, gradients(model, range(LANES)), chosen


def bytes_to_others(case: Case, size: int, model: Any, chosen: list[Tensor]) -> list[int]:
    """The bytes that each rank sends to others: every row and its output, and the gradient of both."""
    here, experts = case.feedforward.experts // case.layout.expert, case.feedforward.experts
    counts = torch.stack([one.flatten().bincount(minlength=experts) for one in chosen])
    if case.feedforward.capacity is not None:  # unused places travel too
        mixture = next(module for module in model.modules() if isinstance(module, CapacityExperts))
        counts[:] = mixture.places(len(chosen[0]))
    # [ranks, lanes of each, layers, ranks of a group, experts of each]; ranks have the lanes in order
    counts = counts.view(size, LANES // size, -1, case.layout.expert, here).sum((1, 2, 4))
    groups = counts.view(-1, case.layout.expert, case.layout.expert)  # from, to
    others = groups - groups.diagonal(dim1=1, dim2=2).diag_embed()
    rows = 2 * (others.sum(2) + others.sum(1)).flatten()
    return (rows * WIDTH * 8).tolist()


@pytest.mark.parametrize(("size", "number", "name"), [(s, n, name) for s in CASES for n, name in enumerate(CASES[s])])
def test_gradients_and_losses_are_those_of_one_process(ranks, monkeypatch, size, number, name):
    case = CASES[size][name]
    model, losses, chosen = one_process(case, monkeypatch)
    routed_rows = {
        f"{place}.{layer}.{kind}": case.feedforward.experts * cast(Any, module.get_submodule(layer)).parts[0]
        for place, module in model.named_modules()
        if isinstance(module, MixtureOfExperts)
        for layer in ("gate_up" if module.gated else "up", "down")
        for kind in ("weight", *["bias"] * case.bias)
    }
    files = [ranks[size] / f"{number}-{rank}" for rank in range(size)]
    found = [load_file(f"{file}.safetensors") for file in files]
    for key, parameter in model.named_parameters():
        held = torch.stack([tensors[key] for tensors in found])
        assert not held.isnan().all(0).any(), key  # some rank holds each element
        for one in held:
            there = ~one.isnan()
            torch.testing.assert_close(one[there], parameter.grad[there], rtol=0, atol=1e-10, msg=key)
        if key in routed_rows:  # only one rank holds an element of an expert
            held = held[:, : routed_rows[key]]
            assert (~held.isnan()).sum() == held[0].numel(), key
    records = [json.loads(Path(f"{file}.json").read_text(encoding="utf-8")) for file in files]
    for term, values in losses.items():
        together = [value for record in records for value in record["losses"][term]]  # ranks have the lanes in order
        assert together == pytest.approx(values, abs=1e-10)
    if not case.checkpointing:  # which repeats what travels forward
        assert [record["bytes"] for record in records] == bytes_to_others(case, size, model, chosen)


def test_muon_that_needs_the_matrices_of_all_experts_together_is_refused():
    case = CASES[2]["shared"]
    model = build(case)
    apply.cut(model, World(0, 2, layout=case.layout))
    MuonConfig().build(model)
    with pytest.raises(
        UserError, match=r"all experts of a layer .*; set --train.optimizer.split true, or --layout.expert 1"
    ):
        MuonConfig(split=False).build(model)
