"""A fault is real when its training shows it, and the same training without it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_faults import Fault
from run_kit import Record, trained
from test_run_faults_are_real import Seen


def shown(fault: Fault, check: Callable[[Seen], bool], folder: Path) -> None:
    """Both trainings, looked at by one check."""
    case = fault.make(folder)
    records = Record(), Record()
    wrong, sound = (
        Seen(one, record, trained(one, folder, [record]))
        for one, record in zip((case, case.cured()), records, strict=True)
    )
    assert check(wrong), "the training does not show it"
    assert sound.ended.error is None
    assert sound.record.losses[-1] < sound.record.losses[0] - 0.3, "the sound training does not learn"
    assert not check(sound), "the sound training shows it too"
