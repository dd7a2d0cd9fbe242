"""`regard evaluate`."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from regard.commands.common import RUNS, RunName, open_run
from regard.errors import UserError


def told(batches: Iterable[Any], targets: int) -> Iterator[Any]:
    """The batches, with a line on standard error every two seconds: how far it is."""
    done, due = 0, time.monotonic() + 2
    for batch in batches:
        yield batch
        done += int((batch.targets >= 0).sum())
        if time.monotonic() > due:
            due = time.monotonic() + 2
            print(f"\r{done / targets:.0%} of {targets:,} tokens", end="", file=sys.stderr, flush=True)
    print("\r\033[K" if sys.stderr.isatty() else "", end="", file=sys.stderr)


def evaluate(
    run: RunName = None,
    /,
    *,
    part: Literal["validation", "test", "train"] = "validation",
    stride: int | None = None,
    step: int | None = None,
    batch: int = 16,
    device: str = "auto",
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """The loss of a trained model on a part of its text: in nats per token, bits per character and per byte.

    Args:
        run: The run's folder or name; by default the newest run.
        part: validation, test (what --data.test kept back) or train.
        stride: Slide the window by so many tokens, so that each is foretold from a long context; by default windows
            stand side by side, as during training.
        step: A checkpoint's step; by default the newest.
        batch: Windows at a time.
        device: Where to run: auto, cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print it as JSON.
    """
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    found = open_run(run, runs)
    from regard.config import load
    from regard.generate.load import find_device, load_model
    from regard.train import Experiment
    from regard.train.precision import Precision
    from regard.train.score import score

    experiment = load(Experiment, found.config, source=str(found.path / "config.toml"))
    place = find_device(device)
    loaded = load_model(found, place, step)
    data: Any = experiment.data.build(experiment.model.context)  # type: ignore[attr-defined]
    if data.specials is not None:
        raise UserError(f"{found.path} translates: regard translate {found.path} --test gives its BLEU")
    if not getattr(data.parts, part).targets:
        raise UserError(f"this run's text has no {part} part; train with --data.{part} 0.05 to keep one back")
    loaded.check_data(data)
    batches = data.sliding_batches(part, batch, data.context if stride is None else stride)
    targets = getattr(data.parts, part).targets
    result = score(loaded.model, experiment.task.build(), told(batches, targets), place, Precision("auto", place))
    characters, size = data.amount(part)
    summary = {
        "run": str(found.path),
        "step": loaded.step,
        "part": part,
        "stride": stride,
        "targets": result.targets,
        "loss": result.loss,
        "bits_per_character": result.bits_per(characters / result.targets),
        "bits_per_byte": result.bits_per(size / result.targets),
    }
    if json:
        print(jsonlib.dumps(summary))
    else:
        print(
            f"{found.path}, step {loaded.step:,}, {part} part of {result.targets:,} tokens: "
            f"{result.loss:.4f} nats per token, "
            f"{summary['bits_per_character']:.4f} bits per character, {summary['bits_per_byte']:.4f} bits per byte"
        )
    return 0
