"""Every fault of the list is one: a training shows it, and the same training without it does not.

Each check looks at the one thing that its fault is about, and knows the place; nothing here searches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from run_faults import FAULTS, HEALTHY, KINDS, Case, Fault
from run_kit import Ended, Record, trained

from regard import recipes
from regard.commands.train import described
from regard.config import to_toml
from regard.look import attentions, heads
from regard.train import Diverged
from regard.train.device import memory


class Seen(NamedTuple):
    """A training that is over, and what was noted on the way."""

    case: Case
    record: Record
    ended: Ended

    @property
    def model(self) -> Any:
        return self.ended.engine.model

    def batch(self, number: int = 0) -> Any:
        """A training batch as the run got it."""
        return self.ended.engine.batch(number)

    def spreads(self, layer: str) -> list[float]:
        """Of each head of one layer, its entropy as a share of the greatest possible one."""
        found = attentions(self.model, lambda: self.model(self.batch().inputs))
        return [head.spread for head in heads(found) if head.name.startswith(layer)]

    def shares(self, layer: int) -> list[float]:
        """Of all pairs of a token and an expert, each expert's, in the last update."""
        return self.ended.engine.details()["expert_share"][layer]

    def outputs(self, module: str, tokens: torch.Tensor) -> torch.Tensor:
        """What one module gives for these tokens."""
        kept: list[torch.Tensor] = []
        hook = self.model.get_submodule(module).register_forward_hook(lambda _, given, out: kept.append(out))
        with torch.no_grad():
            self.model(tokens)
        hook.remove()
        return kept[0]

    def ahead(self, module: str) -> bool:
        """Whether one module's outputs depend on the last token at places before it."""
        tokens = self.batch().inputs
        other = tokens.clone()
        other[:, -1] = (other[:, -1] + 1) % self.model.config.vocabulary
        one, two = (self.outputs(module, these)[:, :-1] for these in (tokens, other))
        return not torch.equal(one, two)

    def spike(self, update: int) -> float:
        """How far one update's loss is above the highest of the five before it."""
        return self.record.losses[update] - max(self.record.losses[update - 5 : update])


def order_is_lost(seen: Seen) -> bool:
    """The last token's logits are the same whatever the order of those before it."""
    tokens = seen.batch().inputs
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    with torch.no_grad():
        one, two = (seen.model(these)[:, -1] for these in (tokens, turned))
    return torch.allclose(one, two, atol=1e-4)


def validation_was_trained_on(seen: Seen) -> bool:
    """Every whole held-out window stands in the part that is trained on."""
    data = seen.ended.engine.data
    tokens = [bytes(data._tokens.windows(np.array([part.start]), part.size)[0].tolist()) for part in data.parts[:2]]
    known, held = tokens
    return all(held[first : first + 32] in known for first in range(0, len(held) - 32, 32))


def learned_by_heart(seen: Seen) -> bool:
    """The validation loss has risen far while the training loss fell far."""
    losses, validation = seen.record.losses, seen.record.validation
    return losses[-1] < losses[0] - 0.7 and validation[-1] > min(validation) + 0.7


def beyond(seen: Seen) -> bool:
    """Batch 12 has a token that there is not, and the training ends with it."""
    late = int(seen.batch(12).inputs.max()) >= seen.model.config.vocabulary
    return late and isinstance(seen.ended.error, IndexError) and len(seen.record.losses) == 12


def diverged(module: str, position: int) -> Callable[[Seen], bool]:
    """The training ends with a number that is not finite, there and then."""

    def check(seen: Seen) -> bool:
        error = seen.ended.error
        return isinstance(error, Diverged) and str(error.module).startswith(module) and error.position == position

    return check


def waited(seen: Seen) -> bool:
    """Even the quickest of five batches takes as long as the loader sleeps."""
    times = []
    for number in range(5):
        began = time.perf_counter()
        seen.batch(number)
        times.append(time.perf_counter() - began)
    return min(times) >= 0.05


def overshooting(seen: Seen) -> bool:
    """The loss is worse than that of weights nobody has trained, and a step replaces some of them altogether."""
    record = seen.record
    return max(record.losses[5:]) > record.losses[0] and max(max(moves.values()) for moves in record.moves[:5]) > 1


CHECKS: dict[str, Callable[[Seen], bool]] = {
    "recurrent matrix too large": lambda seen: seen.record.gradient("blocks.0.recurrent") > 1000,
    "backward pass written wrong": lambda seen: (
        seen.record.gradient("blocks.1") > 100 * seen.record.gradient("blocks.2")
    ),
    "saturated cells": lambda seen: (
        seen.record.gradient("blocks.0.recurrent") < 1e-4 * seen.record.gradient("blocks.1.recurrent")
    ),
    "detached in the middle": lambda seen: (
        seen.record.gradient("blocks.0") == 0 and min(seen.record.gradient(f"blocks.{i}") for i in (1, 2)) > 0.01
    ),
    "scores too large": lambda seen: max(seen.spreads("blocks.1")) < 0.1 < min(seen.spreads("blocks.0")),
    "scale almost zero": lambda seen: min(seen.spreads("blocks.1")) > 0.999 > max(seen.spreads("blocks.0")),
    "poisoned batch": lambda seen: seen.spike(41) > 1.0,
    "poisoned micro-batch": lambda seen: seen.spike(81 // 2) > 0.5,
    "activation overflows": diverged("blocks.1.feedforward", 0),
    "embedding of a rare token broken": diverged("embed", 20),
    "rate a hundred times too high": overshooting,
    "rate a thousand times too low": lambda seen: seen.record.losses[-1] > seen.record.losses[0] - 0.1,
    "dead layer": lambda seen: float(seen.outputs("blocks.1.feedforward.up", seen.batch().inputs).max()) < 0,
    "expert shut out": lambda seen: seen.shares(1)[3] == 0 < seen.shares(0)[3],
    "expert preferred": lambda seen: seen.shares(0)[2] > 0.45 > max(seen.shares(1)),
    "no causal mask": lambda seen: seen.ahead("blocks.0"),
    "one layer ignores the mask": lambda seen: seen.ahead("blocks.1.attention") and not seen.ahead("blocks.0"),
    "positions without effect": order_is_lost,
    "labels unshifted": lambda seen: bool((seen.batch().inputs == seen.batch().targets).all()),
    "validation is in training": validation_was_trained_on,
    "loader goes round in a circle": lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 4,
    "learned by heart": learned_by_heart,
    "token beyond the vocabulary": beyond,
    "slow loader": waited,
    "memory almost full": lambda seen: memory(torch.device("cpu")) > 0.95 * (seen.case.limit or float("inf")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that equal trainings are."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def watch(folder: Path) -> Callable[[Case], Seen]:
    """Trains a case; of equal trainings with nothing wrong only the first."""
    sound: dict[str, Seen] = {}

    def trainer(case: Case) -> Seen:
        key = to_toml(case.experiment)
        if case == case.cured() and key in sound:
            return sound[key]
        record = Record()
        seen = Seen(case, record, trained(case, folder, [record]))
        if case == case.cured():
            sound[key] = seen
        return seen

    return trainer


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, folder: Path, watch: Callable[[Case], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    case = fault.make(folder)
    assert CHECKS[fault.name](watch(case)), "the training does not show it"
    seen = watch(case.cured())
    assert seen.ended.error is None
    assert seen.record.losses[-1] < seen.record.losses[0] - 0.3, "the sound training does not learn"
    assert not CHECKS[fault.name](seen), "the sound training shows it too"


def test_the_list_is_whole() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 25
    assert {fault.kind for fault in FAULTS} == set(KINDS)
    assert CHECKS.keys() == {fault.name for fault in FAULTS}
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in FAULTS)


def test_every_recipe_has_healthy_runs_with_three_seeds() -> None:
    """Each line is one that `regard train` takes."""
    found = []
    for line in HEALTHY:
        name, option, seed, *overrides = line.split()
        assert option == "--seed"
        experiment = described(name, overrides, int(seed))
        assert (experiment.train.steps or 0) <= 200
        assert experiment.train.seconds is None
        found.append((name, experiment.seed))
    assert sorted(found) == [(name, seed) for name in recipes.names() for seed in (1, 2, 3)]
