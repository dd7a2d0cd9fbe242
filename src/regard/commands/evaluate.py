"""`regard evaluate`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from regard.commands.common import RunOptions
from regard.config import option
from regard.errors import UserError


def with_progress(batches: Iterable[Any], targets: int) -> Iterator[Any]:
    """The batches, with a line on standard error every two seconds: how far it is."""
    done, due = 0, time.monotonic() + 2
    for batch in batches:
        yield batch
        done += int((batch.targets >= 0).sum())
        if time.monotonic() > due:
            due = time.monotonic() + 2
            print(f"\r{done / targets:.0%} of {targets:,} tokens", end="", file=sys.stderr, flush=True)
    print("\r\033[K" if sys.stderr.isatty() else "", end="", file=sys.stderr)


@dataclass(frozen=True)
class EvaluateOptions(RunOptions):
    """Options of `regard evaluate`."""

    part: Literal["validation", "test", "train"] = option("validation", "the part of the text; test is --data.test")
    stride: int | None = option(
        None, "slide the window by this many tokens, so that each is predicted from a long context; default: no overlap"
    )
    step: int | None = option(None, "step of the checkpoint; default: the newest")
    batch: int = option(16, "windows per batch")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")


def evaluate(options: EvaluateOptions) -> int:
    """Measure a trained model's loss on a part of its text: nats per token, bits per character and per byte."""
    part, stride, batch = options.part, options.stride, options.batch
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    found = options.open()
    from regard.generate.load import find_device, load_model
    from regard.train import Experiment
    from regard.train.evaluate import score
    from regard.train.precision import Precision

    experiment = found.load(Experiment)
    place = find_device(options.device)
    loaded = load_model(found, place, options.step)
    data: Any = experiment.data.build(experiment.model.context)  # type: ignore[attr-defined]
    if data.specials is not None:
        raise UserError(f"{found.path} translates: regard translate {found.path} --test gives its BLEU")
    if not getattr(data.parts, part).targets:
        raise UserError(f"this run's text has no {part} part; train with --data.{part} 0.05 to keep one back")
    loaded.check_data(data)
    batches = data.sliding_batches(part, batch, data.context if stride is None else stride)
    targets = getattr(data.parts, part).targets
    result = score(
        loaded.model, experiment.task.build(), with_progress(batches, targets), place, Precision("auto", place)
    )
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
    if options.json:
        print(json.dumps(summary))
    else:
        print(
            f"{found.path}, step {loaded.step:,}, {part} part of {result.targets:,} tokens: "
            f"{result.loss:.4f} nats per token, "
            f"{summary['bits_per_character']:.4f} bits per character, {summary['bits_per_byte']:.4f} bits per byte"
        )
    return 0
