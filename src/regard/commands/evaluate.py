"""`regard evaluate`."""

from dataclasses import dataclass
from typing import Literal

from regard.commands.common import CheckpointOptions
from regard.config import option
from regard.errors import UserError
from regard.runs.waiting import progress


@dataclass(frozen=True)
class EvaluateOptions(CheckpointOptions):
    """Options of `regard evaluate`."""

    part: Literal["validation", "test", "train"] = option("validation", "the part of the text; test is --data.test")
    stride: int | None = option(
        None, "slide the window by this many tokens, so that each is predicted from a long context; default: no overlap"
    )
    batch: int = option(16, "windows per batch")


def evaluate(options: EvaluateOptions) -> int:
    """Measure a trained model's loss on a part of its text: nats per token, bits per character and per byte."""
    part, stride = options.part, options.stride
    options.check_at_least_one("batch")
    run = options.open()
    from regard.data import TextData
    from regard.generate.load import find_device, load_model
    from regard.train import Experiment
    from regard.train.evaluate import score
    from regard.train.precision import Precision

    experiment = run.load(Experiment)
    device = find_device(options.device)
    loaded = load_model(run, device, options.step)
    data = experiment.data.build(experiment.model.context)
    if data.specials is not None:
        raise UserError(f"{run.path} translates: regard translate {run.path} --test gives its BLEU")
    if not isinstance(data, TextData):
        raise UserError(f"{run.path} was trained on {data.name}, which is no text; `regard evaluate` needs a text")
    targets = data.parts._asdict()[part].targets
    if not targets:
        raise UserError(f"this run's text has no {part} part; train with --data.{part} 0.05 to keep one back")
    loaded.check_data(data)
    batches = data.sliding_batches(part, options.batch, data.context if stride is None else stride)
    task, precision = experiment.task.build(), Precision("auto", device)
    watched = progress(batches, targets, "tokens", lambda batch: int((batch.targets >= 0).sum()))
    result = score(loaded.model, task, watched, precision)
    characters, size = data.amount(part)
    summary = {
        "run": str(run.path),
        "step": loaded.step,
        "part": part,
        "stride": stride,
        "targets": result.targets,
        "loss": result.loss,
        "bits_per_character": result.bits_per(characters / result.targets),
        "bits_per_byte": result.bits_per(size / result.targets),
    }
    bits = f"{summary['bits_per_character']:.4f} bits per character, {summary['bits_per_byte']:.4f} bits per byte"
    what = f"{run.path}, step {loaded.step:,}, {part} part of {result.targets:,} tokens"
    options.show(summary, f"{what}: {result.loss:.4f} nats per token, {bits}")
    return 0
