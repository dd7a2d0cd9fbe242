"""`regard approximate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions, split_names
from regard.commands.lines import contents
from regard.config import option
from regard.errors import UserError
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.data import TextBatch
    from regard.generate.load import LoadedModel
    from regard.train import Experiment


@dataclass(frozen=True)
class ApproximateOptions(CheckpointOptions):
    """Options of `regard approximate`."""

    kinds: str | None = option(
        None,
        "the attentions to try, such as window,performer,lsh; default: all that can replace it",
        metavar="KIND,KIND",
    )
    budgets: tuple[str, ...] = option(
        (),
        "values of a kind's option instead of the usual ones: window=8,16,32 or lsh.rounds=1,4 lsh.buckets=8,16",
        metavar="KIND=8,16 ...",
    )
    text: Path | None = option(None, "a text file to measure on; default: the validation part of the run's own text")
    windows: int = option(32, "number of windows of the model's context that the losses are measured on")
    timed: int | None = option(
        None, "measure speed on one text of this many tokens; default: on windows as long as the model's context"
    )
    each_layer: bool = option(False, "also replace one block at a time")
    out: Path | None = option(None, "the folder for the page, the picture and the numbers; default: the run's folder")


def approximate(options: ApproximateOptions) -> int:
    """Measure cheaper attentions in a trained model: error per head, loss and speed over a range of budgets."""
    options.check_at_least_one("windows")
    run, timed = options.open(), options.timed
    from regard.approximate import Bench, measure, trials
    from regard.approximate.measure import FITTING
    from regard.approximate.page import write
    from regard.approximate.words import LEGEND, numbers, sentences, table
    from regard.generate.load import load_model
    from regard.models import GPT, GPTConfig
    from regard.models.device import find_device
    from regard.studies.page import machine
    from regard.train import Experiment

    experiment = run.load(Experiment)
    config = experiment.model
    if not isinstance(config, GPTConfig):
        raise UserError(f"{run.path} is a model of kind {config.kind}; approximations are measured on gpt runs")
    chosen = trials(split_names(options.kinds), options.budgets, config.context, config.width // config.heads)
    device = find_device(options.device)
    loaded = load_model(run, device, options.step)
    assert isinstance(loaded.model, GPT)
    count = FITTING + max(options.windows, -(-(timed or 0) // config.context))
    text = options.text
    source, name = _own(experiment, loaded, count) if text is None else _read(text, loaded, config.context)
    bench = Bench(loaded.model, experiment.task.build(), source, device, options.windows, timed)
    with waiting("measuring") as say:
        sweep = measure(bench, chosen, each_layer=options.each_layer, say=say)
    setting = f"step {loaded.step:,} · {name} · context {config.context} · {machine(device)}"
    setting += f" · speed on {timed:,} tokens" if timed else ""
    path = write(sweep, run.path if options.out is None else options.out, str(run.path), setting)
    about = {"run": str(run.path), "damaged": run.damaged, "page": str(path), "setting": setting}
    record = {**about, **numbers(sweep)}
    options.show(record, "\n".join([table(sweep), LEGEND, "", *sentences(sweep), f"{path} shows it"]))
    return 0


def _own(experiment: Experiment, loaded: LoadedModel, count: int) -> tuple[TextBatch, str]:
    """Whole windows of the validation part; of the training part if there is none."""
    from regard.data import TextBatch, TextData

    data = experiment.data.build(experiment.model.context)
    if not isinstance(data, TextData):
        raise UserError(f"this run was trained on {data.name}, which is no text; give one with --text FILE")
    loaded.check_data(data)
    held = bool(data.parts.validation.targets)
    batch = next(iter(data.validation_batches(count))) if held else data.batch(0, seed=experiment.seed, size=count)
    whole = (batch.targets >= 0).all(1)
    name = f"{'held-out' if held else 'training'} text of {data.name}"
    return TextBatch(batch.inputs[whole], batch.targets[whole]), name


def _read(path: Path, loaded: LoadedModel, context: int) -> tuple[TextBatch, str]:
    """Whole windows of a file."""
    import torch

    from regard.data import TextBatch

    ids = torch.as_tensor(loaded.tokenizer.encode(contents(path)), dtype=torch.long)
    count = max(0, (len(ids) - 1) // context)
    if count < 2:
        raise UserError(f"{path} has {len(ids):,} tokens, fewer than two windows of {context}; give a longer text")
    inputs, targets = (ids[shift : shift + count * context].view(count, context) for shift in (0, 1))
    return TextBatch(inputs, targets), str(path)
