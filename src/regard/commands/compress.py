"""`regard compress`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions
from regard.config import option, override, to_toml
from regard.errors import UserError
from regard.runs import Run
from regard.runs.folder import CHAT, TOKENIZER
from regard.runs.made import make_run
from regard.runs.waiting import Say, waiting

if TYPE_CHECKING:
    from regard.data import TextBatch
    from regard.generate.load import LoadedModel
    from regard.models import LanguageModel
    from regard.train import Experiment

WAYS = "int8, int4, prune=0.3 or distill=RECIPE"
LONGEST = 512  # tokens of a window that the loss is measured on


@dataclass(frozen=True)
class CompressOptions(CheckpointOptions):
    """Options of `regard compress`."""

    to: str = option("int8", f"how: {WAYS}", metavar="HOW")
    name: str | None = option(None, "the new run's name; default: the run's, with what was done and a number")
    text: str | None = option(
        None, "the text to measure on: a file, a folder or a pattern; default: the run's validation part"
    )
    tokens: int = option(16_384, "number of tokens that the loss is measured on, about")


def compress(options: CompressOptions, keys: Mapping[str, object]) -> int:
    """Make a smaller run of a language model, and measure what that costs and saves.

    The new run is used like any other. --to

      int8             weights of linear layers in 8 bits, one scale per output channel
      int4             in 4 bits, in groups of 32 weights; the output layer in 8
      prune=0.3        without 30 % of the blocks' weights: the heads and layers with the least effect on the loss
      distill=RECIPE   a smaller model that is trained to predict what this one predicts; it takes the keys of
                       `regard train`, such as --model.width 128 --train.steps 1000 --task.temperature 2

    The table compares the loss in nats per token, the time per token at batch 1, and the bytes of the weights.
    """
    options.check_at_least_one("tokens")
    way, value = parse_way(options.to, keys)
    run = options.open()
    Run.check(options.runs, options.name)
    from regard.compress.measure import compare, table
    from regard.generate.load import load_model
    from regard.models import LanguageModel
    from regard.models.device import find_device
    from regard.train import Experiment

    model, loaded = options.load(run, LanguageModel, "; `regard compress` is for language models")
    experiment, device = run.load(Experiment), find_device(options.device)
    if experiment.quantization is not None:
        raise UserError(f"{run.path} is quantized already; compress the run that it was made from")
    with waiting("reading the text") as say:
        batches, text = windows(options, run, experiment, loaded)
    notes: list[str] = []
    if way == "distill":
        made = distilled(options, run, experiment, value, keys)
        small = load_model(made, device).model
    else:
        with waiting(f"making {options.to}") as say:
            if way == "prune":
                small, changed, notes = pruned(value, model, experiment, batches, say)
            else:
                small, changed, notes = quantized(way, model, experiment)
            made = saved(options, run, f"{run.name}-{way}", small, changed, loaded)
    assert isinstance(small, LanguageModel)
    with waiting("measuring") as say:
        rows = compare({run.name: model, made.name: small}, batches, say)
    record = {"run": str(made.path), "from": str(run.path), "to": options.to, "text": text, "notes": notes}
    record["table"] = [row._asdict() for row in rows]
    tokens = sum(int((batch.targets >= 0).sum()) for batch in batches)
    options.show(record, "\n".join([*notes, f"{text}, {tokens:,} tokens, {device}:", table(rows), f"{made.path}"]))
    return 0


def saved(
    options: CompressOptions, run: Run, prefix: str, model: LanguageModel, experiment: Experiment, loaded: LoadedModel
) -> Run:
    """A new run with the smaller model of another run, and its tokenizer and chat template."""
    files = {name: run.read(name) for name in (TOKENIZER, CHAT) if run.file(name).exists()}
    weights, origin = model.state_dict(), {"step": loaded.step, "data": loaded.data_sha256}
    return make_run(options.runs, options.name, to_toml(experiment), weights, files, prefix=prefix, **origin)


def parse_way(to: str, keys: Mapping[str, object]) -> tuple[str, str]:
    """The way to compress that --to names, and its value, such as "prune" and "0.3"."""
    way, _, value = to.partition("=")
    if way not in ("int8", "int4", "prune", "distill") or (way in ("prune", "distill")) != bool(value):
        raise UserError(f"--to {to} is not a way to compress; use {WAYS}")
    if keys and way != "distill":
        raise UserError(f"--{next(iter(keys))} is a key of a training; only --to distill=RECIPE trains a model")
    return way, value


def quantized(way: str, model: LanguageModel, experiment: Experiment) -> tuple[LanguageModel, Experiment, list[str]]:
    """The quantized model, its experiment, and a note about what was done."""
    from regard.nn.fused import install
    from regard.nn.quantized import Int4Config, Int8Config, quantize

    config = Int8Config() if way == "int8" else Int4Config()
    small = copy.deepcopy(model)
    done = quantize(small, config)
    install(small)
    before, after = sum(one.before for one in done), sum(one.after for one in done)
    note = f"{len(done)} linear layers: {before / 1e6:,.1f} -> {after / 1e6:,.1f} MB"
    return small, replace(experiment, quantization=config), [note]


def pruned(
    value: str, model: LanguageModel, experiment: Experiment, batches: list[TextBatch], say: Say
) -> tuple[LanguageModel, Experiment, list[str]]:
    """The pruned model, its experiment, and a note about each part that was removed."""
    from regard.compress.measure import loss_of
    from regard.compress.prune import prune
    from regard.models import GPT

    if not isinstance(model, GPT):
        raise UserError(f"a {type(model).__name__} is not pruned; quantize it with --to int8")
    try:
        fraction = float(value)
    except ValueError:
        raise UserError(f"prune={value} is not a fraction; prune=0.3 removes 30 % of the blocks' weights") from None
    few = batches[: max(1, len(batches) // 4)]  # the effects are measured on a part of the text
    small, removed = prune(model, fraction, lambda: loss_of(model, few), say)
    return small, replace(experiment, model=small.config), [str(one) for one in removed]


def distilled(
    options: CompressOptions, run: Run, experiment: Experiment, recipe: str, keys: Mapping[str, object]
) -> Run:
    """The run of a smaller model that was trained to predict what ``run`` predicts, on its data."""
    from regard.commands.train import read_experiment
    from regard.data import TextConfig
    from regard.train import fit
    from regard.train.distill import DistillConfig
    from regard.train.live import LiveLine

    if not isinstance(experiment.data, TextConfig):
        raise UserError(f"{run.path} was not trained on a text here, so there is none to distill it on; quantize it")
    task = {name: given for name, given in keys.items() if name.partition(".")[0] == "task"}
    student = read_experiment(recipe, {name: given for name, given in keys.items() if name not in task})
    student = replace(
        student,
        data=replace(experiment.data, batch=student.data.batch),
        task=DistillConfig(teacher=str(run.path.resolve())),
        train=replace(student.train, compile=False),  # the teacher is another model
    )
    student = override(student, task)
    result = fit(student, options.name or free_name(options.runs, f"{run.name}-distill"), [LiveLine()], options.runs)
    return Run.open(result.path)


def free_name(runs: Path, prefix: str) -> str:
    """The first of prefix-1, prefix-2, ... that is not taken."""
    return next(name for n in range(1, 10**6) if not (runs / (name := f"{prefix}-{n}")).exists())


def windows(
    options: CompressOptions, run: Run, experiment: Experiment, loaded: LoadedModel
) -> tuple[list[TextBatch], str]:
    """Batches of windows, and the name of the text: the run's validation part, or a given one.

    A model from elsewhere has no text; for it the default is Moby-Dick.
    """
    from regard.commands.evaluate import EvaluateOptions, other_text, own_text
    from regard.data import ImportedConfig
    from regard.data.sources import find_source

    context = min(experiment.model.context, LONGEST)
    shorter = replace(experiment, model=replace(experiment.model, context=context))  # type: ignore[type-var] (a frozen dataclass)
    text = options.text
    if text is None and isinstance(experiment.data, ImportedConfig):
        text = str(find_source("moby-dick").fetch())
    if text is None:
        data = own_text(run, shorter, loaded)
    else:
        data = other_text(EvaluateOptions(file=text), run, shorter, loaded)
    part = "test" if text is not None else "validation" if data.validation_count else "train"
    size = 4
    found = list(islice(data.sliding_batches(part, size, context), max(1, options.tokens // (size * context))))
    return found, f"{part} part of {data.name}" if text is None else Path(text).name
