"""Every unseen fault is one: a training shows it, and the same training without it does not.

Each check looks at the one thing that its fault is about, and knows the place; nothing here searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_faults import FAULTS, KINDS, Fault
from shown_kit import shown
from test_run_faults_are_real import Seen
from torch.nn import functional as F
from unseen_runs import UNSEEN

from regard.look import attentions, heads
from regard.train import Diverged


def crossing(seen: Seen) -> list[float]:
    """Of each head that looks at the source, its entropy as a share of the greatest possible one."""
    batch = seen.batch()
    found = attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths))
    return [head.spread for head in heads(found) if ".cross." in head.name]


def slopeless(seen: Seen) -> bool:
    """The training ends with the 21st batch, every output and the loss finite, and the embedding's gradient not."""
    error, named = seen.ended.error, seen.model.named_parameters()
    broken = [name for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
    return isinstance(error, Diverged) and (error.position, error.module, broken) == (20, None, ["embed.weight"])


def never_warm(seen: Seen) -> bool:
    """The rate stays a fiftieth of what was asked for, and the loss where it was."""
    record = seen.record
    return max(record.rates) < 5e-3 / 50 and record.losses[-1] > record.losses[0] - 0.2


def padding_matters(seen: Seen) -> bool:
    """A sentence's memory is another one when there is more padding behind it."""
    batch, pad = seen.batch(), seen.ended.engine.data.specials.pad
    wider = F.pad(batch.source, (0, 4), value=pad)
    real = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    with torch.no_grad():
        one, two = (seen.model.encode(source, batch.source_lengths)[0] for source in (batch.source, wider))
    return not torch.allclose(one[real], two[:, : one.shape[1]][real], atol=1e-3)


def marked(seen: Seen) -> bool:
    """Batch 15 has a target that there is not, and the training ends with it."""
    return int(seen.batch(15).targets.min()) == -100 and isinstance(seen.ended.error, IndexError)


def shut_out(seen: Seen) -> bool:
    """Half the experts of the first layer get nothing at all."""
    return [seen.shares(0)[expert] for expert in (0, 1, 4, 6)] == [0.0] * 4


CHECKS: dict[str, Callable[[Seen], bool]] = {
    "memory rounded": lambda seen: seen.record.gradient("encoder") == 0 and seen.record.gradient("decoder") > 0.1,
    "memory pooled": lambda seen: min(crossing(seen)) > 0.999,
    "strange stretch of text": lambda seen: seen.spike(40) > 1.0,
    "root of nothing": slopeless,
    "warm-up without end": never_warm,
    "gains counted from zero": lambda seen: (
        float(seen.outputs("blocks.2.convolution", seen.batch().inputs).abs().max()) == 0
    ),
    "balanced the wrong way": shut_out,
    "padding not masked": padding_matters,
    "one micro-batch four times": lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 10,
    "mark of another library": marked,
}


@pytest.mark.parametrize("fault", UNSEEN, ids=lambda fault: fault.name)
def test_the_training_shows_it_and_a_sound_one_does_not(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    shown(fault, CHECKS[fault.name], tmp_path)


def test_the_list_is_whole() -> None:
    names, kinds = {fault.name for fault in UNSEEN}, {fault.kind for fault in UNSEEN}
    assert len(UNSEEN) == len(names) == 10
    assert not names & {fault.name for fault in FAULTS}
    assert len(kinds) >= 8
    assert kinds <= set(KINDS)
    assert CHECKS.keys() == names
    assert all(re.compile(fault.where).groups == 0 and fault.about.endswith(".") for fault in UNSEEN)
