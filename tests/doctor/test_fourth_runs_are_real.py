"""Every fault of the fourth list is one: a training shows it, and the same training without it does not.

Each check looks at the one thing that its fault is about, and knows the place; nothing here searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fourth_runs import FOURTH
from fresh_runs import FRESH
from run_faults import FAULTS, KINDS, Fault
from shown_kit import shown
from test_run_faults_are_real import Seen, diverged
from third_runs import THIRD
from unseen_runs import UNSEEN


def longer_and_longer(seen: Seen) -> bool:
    """The gradient's norm rises throughout, to twenty times what it was, and the loss does not end where it could."""
    norms = [record["grad_norm"] for record in seen.ended.run.metrics() if "grad_norm" in record]
    first, second, third = (float(np.median(norms[50 * i : 50 * (i + 1)])) for i in range(3))
    return norms[0] * 20 < norms[-1] and first < second < third and min(seen.record.losses[-20:]) > 1.5


def fading(seen: Seen) -> bool:
    """On either side the lowest layer gets less than a thousandth of the gradient that the highest one gets."""
    sides = [[seen.record.gradient(f"{side}.{i}.") for i in range(8)] for side in ("encoder", "decoder")]
    return all(norms[0] < 1e-3 * norms[7] and norms == sorted(norms) for norms in sides)


def head_forgotten(seen: Seen) -> bool:
    """One update's loss is that of a guess, and the next ones fall from there."""
    losses = seen.record.losses
    return abs(losses[45] - np.log(seen.model.config.vocabulary)) < 0.1 and seen.spike(45) > 3 and losses[55] > 3


def hardly_moving(seen: Seen) -> bool:
    """The rate is the one that was asked for, and no matrix of the cells moves by a thousandth in an update."""
    record = seen.record
    matrices = [name for name in record.moves[0] if ".weight_" in name]
    moved = max(moves[name] for moves in record.moves for name in matrices)
    return moved < 1e-3 and record.rates[-1] == 5e-3 and record.losses[-1] > record.losses[0] - 0.5


def cut_away(seen: Seen) -> bool:
    """All but nine units of the layer give zero for every token, and most units of the next layer do not."""
    tokens = seen.batch().inputs
    gates, others = (seen.outputs(f"blocks.{i}.feedforward.gate_up", tokens) for i in (0, 1))
    on = [(out.chunk(2, dim=-1)[0] > 0).flatten(0, 1).any(0) for out in (gates, others)]
    return int(on[0].sum()) == 9 and float(on[1].float().mean()) > 0.9


def left_alone(seen: Seen) -> bool:
    """At least two of eight experts of the first layer get under a thousandth of the tokens in the last thirty updates.

    Which ones depends on the CPU's rounding.
    """
    shares = [record["expert_share"][0] for record in seen.ended.run.metrics() if "expert_share" in record]
    return int((np.array(shares)[-30:].mean(0) < 1e-3).sum()) >= 2


def known_already(seen: Seen) -> bool:
    """Every target is the token before the newest one, and in the end all of them are right."""
    batch = seen.batch()
    return torch.equal(batch.targets[:, 1:], batch.inputs[:, :-1]) and seen.record.validation[-1] < 0.1


def read_before(seen: Seen) -> bool:
    """Most stretches of sixteen tokens stand in the text many times, and held-out text is known nearly by heart."""
    data = seen.ended.engine.data
    text = bytes(data._tokens.windows(np.array([0]), data.train_count)[0].tolist())
    stretches = [text[begin : begin + 16] for begin in range(0, len(text) - 16, 97)]
    often = sum(text.count(stretch) > 20 for stretch in stretches) / len(stretches)
    return often > 0.7 and seen.record.validation[-1] < 0.5


CHECKS: dict[str, Callable[[Seen], bool]] = {
    "gradients never cleared": longer_and_longer,
    "deep with norms on the path": fading,
    "head not restored": head_forgotten,
    "nothing but prompt": diverged("the loss term next_token", 51),
    "epsilon of one": hardly_moving,
    "pruned too far": cut_away,
    "no loss that balances": left_alone,
    "padded as a picture": lambda seen: (
        seen.ahead("blocks.1.convolution") and not seen.ahead("blocks.0") and seen.record.validation[-1] < 0.2
    ),
    "shifted the wrong way": known_already,
    "one page by many addresses": read_before,
}


@pytest.mark.parametrize("fault", FOURTH, ids=lambda fault: fault.name)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    shown(fault, CHECKS[fault.name], tmp_path)


def test_the_list_is_whole() -> None:
    names, kinds = {fault.name for fault in FOURTH}, {fault.kind for fault in FOURTH}
    assert len(FOURTH) == len(names) == len(kinds) == 10
    assert not names & {fault.name for fault in [*FAULTS, *UNSEEN, *FRESH, *THIRD]}
    assert kinds <= set(KINDS)
    assert CHECKS.keys() == names
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in FOURTH)
