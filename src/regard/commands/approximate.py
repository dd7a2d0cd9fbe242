"""`regard approximate`."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from regard.commands.common import RUNS, RunName, open_run
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.approximate import Windows
    from regard.generate.load import LoadedModel

Kinds = Annotated[str | None, tyro.conf.arg(name="with", metavar="KIND,KIND")]
Budgets = Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KIND=8,16,32 ...]")]


def approximate(
    run: RunName = None,
    /,
    *,
    with_: Kinds = None,
    budgets: Budgets = (),
    text: Path | None = None,
    windows: int = 32,
    timed: int | None = None,
    each_layer: bool = False,
    step: int | None = None,
    device: str = "auto",
    out: Path | None = None,
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """What a cheaper attention would cost a trained model: error by head, loss and speed over a range of budgets.

    Args:
        run: The run's folder or name; by default the newest run.
        with_: Which attentions to try, such as window,performer,lsh; by default all that may stand in.
        budgets: Values of a kind's knob, such as window=8,16,32 or lsh.rounds=1,4 lsh.buckets=8,16, instead of its
            usual ones.
        text: A text file to measure on; by default the validation part of the run's own text.
        windows: How many windows of the model's context the losses are over.
        timed: Measure speed on one text of so many tokens; by default on windows as long as the model's context.
        each_layer: Also exchange one block at a time.
        step: A checkpoint's step; by default the newest.
        device: Where to run: auto, cpu, cuda, mps.
        out: The folder for the page, the picture and the numbers; by default the run's own.
        runs: The folder that holds runs.
        json: Print the numbers as JSON.
    """
    if windows < 1:
        raise UserError(f"--windows must be at least 1, not {windows}")
    found = open_run(run, runs)
    from regard.approximate import Bench, measure, trials
    from regard.approximate.measure import FITTING
    from regard.approximate.page import write
    from regard.approximate.words import LEGEND, numbers, sentences, table
    from regard.config import load
    from regard.generate.load import find_device, load_model
    from regard.models import GPTConfig
    from regard.studies.machine import machine
    from regard.train import Experiment

    experiment: Any = load(Experiment, found.config, source=str(found.path / "config.toml"))
    config = experiment.model
    if not isinstance(config, GPTConfig):
        raise UserError(f"{found.path} is a model of kind {config.kind}; approximations are measured on gpt runs")
    wanted = None if with_ is None else [kind for kind in with_.replace(" ", "").split(",") if kind]
    chosen = trials(wanted, budgets, config.context, config.width // config.heads)
    place = find_device(device)
    loaded = load_model(found, place, step)
    count = FITTING + max(windows, -(-(timed or 0) // config.context))
    source, name = _own(experiment, loaded, count) if text is None else _read(text, loaded, config.context)
    bench = Bench(loaded.model, experiment.task.build(), source, place, windows, timed)
    meter = measure(bench, chosen, each_layer=each_layer, say=_teller())
    setting = f"step {loaded.step:,} · {name} · context {config.context} · {machine(place)}"
    setting += f" · speed on {timed:,} tokens" if timed else ""
    path = write(meter, found.path if out is None else out, str(found.path), setting)
    if json:
        print(jsonlib.dumps({"run": str(found.path), "page": str(path), "setting": setting, **numbers(meter)}))
    else:
        print("\n".join([table(meter), LEGEND, "", *sentences(meter), f"{path} shows it"]))
    return 0


def _own(experiment: Any, loaded: LoadedModel, count: int) -> tuple[Windows, str]:
    """Whole windows of the held-out part; of the training part where nothing is held out."""
    from regard.approximate import Windows

    data = experiment.data.build(experiment.model.context)
    loaded.check_data(data)
    held = bool(data.parts.validation.targets)
    batch = next(iter(data.validation_batches(count))) if held else data.batch(0, seed=experiment.seed, size=count)
    whole = (batch.targets >= 0).all(1)
    name = f"{'held-out' if held else 'training'} text of {data.name}"
    return Windows(batch.inputs[whole], batch.targets[whole]), name


def _read(path: Path, loaded: LoadedModel, context: int) -> tuple[Windows, str]:
    """Whole windows of a file."""
    import torch

    from regard.approximate import Windows
    from regard.commands.lines import contents

    ids = torch.as_tensor(loaded.tokenizer.encode(contents(path)), dtype=torch.long)
    count = max(0, (len(ids) - 1) // context)
    if count < 2:
        raise UserError(f"{path} has {len(ids):,} tokens, fewer than two windows of {context}; give a longer text")
    inputs, targets = (ids[shift : shift + count * context].view(count, context) for shift in (0, 1))
    return Windows(inputs, targets), str(path)


def _teller():
    """A line on standard error, at most every two seconds."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 2:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    return say
