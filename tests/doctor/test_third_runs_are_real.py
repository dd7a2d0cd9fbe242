"""Every fault of the third list is one: a training shows it, and the same training without it does not.

Each check looks at the one thing that its fault is about, and knows the place; nothing here searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fresh_runs import FRESH
from run_faults import FAULTS, KINDS, Fault
from shown_kit import shown
from test_run_faults_are_real import Seen, diverged, order_is_lost
from third_runs import THIRD
from unseen_runs import UNSEEN

from regard.look import attentions, heads


def longer_and_longer(seen: Seen) -> bool:
    """Before clipping the gradient is huge all the time, and most of it lies in the lowest blocks and below."""
    norms = [record["grad_norm"] for record in seen.ended.run.metrics() if "grad_norm" in record]
    return min(norms) > 100 and seen.record.gradient("blocks.0.") > 100 * seen.record.gradient("blocks.11.")


def untaught(seen: Seen) -> bool:
    """No router gets a gradient to speak of, and all experts do."""
    parts = [[seen.record.gradient(f"blocks.{i}.feedforward.{part}") for i in range(3)] for part in ("router", "down")]
    return max(parts[0]) < 1e-6 and min(parts[1]) > 1e-3


def looks_at_one_place(seen: Seen) -> bool:
    """The decoder's attention has no entropy left."""
    batch = seen.batch()
    found = attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths))
    return max(head.spread for head in heads(found)) < 0.05


def miscomputed(seen: Seen) -> bool:
    """The loss of one update is far too high, that of the next is not, and neither is that of the same batch again."""
    engine, losses, batch = seen.ended.engine, seen.record.losses, seen.batch(35)
    with torch.no_grad():
        again = float(engine.terms(engine.model, batch)["next_token"].total) / batch.targets.numel()
    return seen.spike(35) > 1.0 and max(again, losses[36]) < losses[35] - 1.0


def ended_early(seen: Seen) -> bool:
    """After a quarter of the updates the rate is zero, and the loss stays where it was."""
    rates, losses = seen.record.rates, seen.record.losses
    return max(rates[16:]) == 0 < min(rates[:15]) and min(losses[16:]) > losses[16] - 0.2


def switched_off(seen: Seen) -> bool:
    """Hardly a unit of the layer is on for any token, and a good part of those below are."""
    tokens = seen.batch().inputs
    on = [float((seen.outputs(f"blocks.{i}.feedforward.up", tokens) > 0).float().mean()) for i in range(3)]
    return on[2] < 0.001 and min(on[:2]) > 0.1


def two_rows_each(seen: Seen) -> bool:
    """Every batch has each of its rows four times."""
    return all(len({str(row) for row in seen.batch(i).inputs.tolist()}) == 2 for i in range(40))


CHECKS: dict[str, Callable[[Seen], bool]] = {
    "drawn without regard to width": longer_and_longer,
    "gate that is always one": untaught,
    "cooled too soon": looks_at_one_place,
    "faulty device": miscomputed,
    "smoothing over hidden tokens": diverged("unembed", 0),
    "schedule counts micro-batches": ended_early,
    "penalty too strong": switched_off,
    "hash of the upper bits": lambda seen: min(seen.shares(layer)[3] for layer in range(3)) > 0.6,
    "distances backwards": order_is_lost,
    "workers with one seed": two_rows_each,
}


@pytest.mark.parametrize("fault", THIRD, ids=lambda fault: fault.name)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    shown(fault, CHECKS[fault.name], tmp_path)


def test_the_list_is_whole() -> None:
    names, kinds = {fault.name for fault in THIRD}, {fault.kind for fault in THIRD}
    assert len(THIRD) == len(names) == len(kinds) == 10
    assert not names & {fault.name for fault in [*FAULTS, *UNSEEN, *FRESH]}
    assert kinds <= set(KINDS)
    assert CHECKS.keys() == names
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in THIRD)
