"""Every fresh fault is one: a training shows it, and the same training without it does not.

Each check looks at the one thing that its fault is about, and knows the place; nothing here searches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fresh_runs import FRESH, ROOM
from run_faults import FAULTS, KINDS, Fault
from shown_kit import shown
from test_run_faults_are_real import Seen, diverged
from unseen_runs import UNSEEN

from regard.look import attentions, heads
from regard.train.device import memory


def only_the_first_collapse(seen: Seen) -> bool:
    """Self-attention over embeddings has next to no entropy, and all other attention has a lot."""
    batch = seen.batch()
    found = heads(attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths)))
    first = [head.spread for head in found if ".0.attention" in head.name]
    return max(first) < 0.1 and all(head.spread > 0.3 for head in found if ".0.attention" not in head.name)


def outgrown(seen: Seen) -> bool:
    """The rate in the log stays, updates grow to a tenth of the weights, and the loss loses what it had gained."""
    record = seen.record
    grown = max(record.moves[-1].values()) > 0.1 and len(set(record.rates[5:])) == 1
    return grown and min(record.losses[-5:]) > min(record.losses) + 1


def never_on(seen: Seen) -> bool:
    """Three units of four give zero for every token, and have nothing but the zeros they began with."""
    kept: list[torch.Tensor] = []
    network, batch = seen.model.decoder[1].feedforward, seen.batch()
    hook = network.up.register_forward_hook(lambda _, given, out: kept.append(out))
    with torch.no_grad():
        seen.model(batch.inputs, batch.source, batch.source_lengths)
    hook.remove()
    return not kept[0][..., 32:].any() and not network.down.weight[:, 32:].any()


def order_is_lost(seen: Seen) -> bool:
    """A source read backwards gives the same memory, backwards."""
    batch = seen.batch()
    source = batch.source[batch.source_lengths == batch.source.shape[1]]
    lengths = torch.full((len(source),), source.shape[1])
    with torch.no_grad():
        one, two = (seen.model.encode(these, lengths)[0] for these in (source, source.flip(1)))
    return torch.allclose(one, two.flip(1), atol=1e-4)


def known_beforehand(seen: Seen) -> bool:
    """Every source is the translation, and in the end most of it is simply copied."""
    batch = seen.batch()
    real = batch.targets >= 0
    same = batch.source.shape == batch.targets.shape and torch.equal(batch.source[real], batch.targets[real])
    return same and seen.record.validation[-1] < 0.8


def waited(seen: Seen) -> bool:
    """One batch of eight takes far longer than all others together."""
    times = []
    for number in range(8, 16):
        began = time.perf_counter()
        seen.batch(number)
        times.append(time.perf_counter() - began)
    return times[0] > 0.4 > sum(times[1:])


def hoarded(seen: Seen) -> bool:
    """Memory has grown by more than the process may have, a good part of it in the second half of the run."""
    of_steps = [record["memory"] for record in seen.ended.run.metrics() if "memory" in record]
    grown = of_steps[-1] - of_steps[len(of_steps) // 2]
    return grown > ROOM / 4 and memory(torch.device("cpu")) > (seen.case.limit or float("inf"))


CHECKS: dict[str, Callable[[Seen], bool]] = {
    "deep without shortcuts": lambda seen: seen.record.gradient("blocks.0") < 0.01 * seen.record.gradient("blocks.7"),
    "embeddings scaled twice": only_the_first_collapse,
    "columns exchanged": lambda seen: seen.spike(37) > 1.0,
    "blank line": diverged("encoder.0.attention", 18),
    "decay upside down": outgrown,
    "widened with zeros": never_on,
    "positions of rows": order_is_lost,
    "one column read twice": known_beforehand,
    "stalls between files": waited,
    "outputs hoarded": hoarded,
}


@pytest.mark.parametrize("fault", FRESH, ids=lambda fault: fault.name)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    shown(fault, CHECKS[fault.name], tmp_path)


def test_the_list_is_whole() -> None:
    names, kinds = {fault.name for fault in FRESH}, {fault.kind for fault in FRESH}
    assert len(FRESH) == len(names) == len(kinds) == 10
    assert not names & {fault.name for fault in [*FAULTS, *UNSEEN]}
    assert kinds <= set(KINDS)
    assert CHECKS.keys() == names
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in FRESH)
