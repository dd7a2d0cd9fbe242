"""`regard train`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, CommandOptions, rank
from regard.commands.launch import adopt_slurm, check_processes, command_began, is_restart, launch
from regard.commands.start import start_run
from regard.config import argument, load, nearest, option, override, parse, read_toml
from regard.config import keys as keys_of
from regard.config.parts import with_options
from regard.errors import UserError
from regard.parallel.layout import Layout
from regard.runs import Run
from regard.runs.schema import migrate

if TYPE_CHECKING:
    from regard.train import Experiment, Observer, TrainingResult

#: The tables of an experiment: `--model recurrent` chooses a kind, `--model.width` sets a key.
TABLES = ("model", "data", "task", "train")
#: The length of a training; one given on the command line replaces that of the recipe or file.
BUDGETS = ("steps", "tokens", "epochs", "seconds")
#: Names of other libraries' options, for the error that suggests ours.
OTHER_WORDS = {
    "batch_size": "data.batch",
    "block_size": "model.context",
    "d_model": "model.width",
    "gpu": "train.device",
    "hidden_size": "model.width",
    "learning_rate": "train.optimizer.lr",
    "max_iters": "train.steps",
    "max_length": "model.context",
    "n_embd": "model.width",
    "seq_len": "model.context",
}


@dataclass(frozen=True)
class ObserverOptions(CommandOptions):
    """Options of a training that are not part of the experiment: its observers and its processes."""

    watch: bool = option(False, "draw the losses as a curve in the terminal during training")
    doctor: bool = option(False, "report training problems with place, cause and fix; the training itself is unchanged")
    tensorboard: bool = option(False, "also write TensorBoard events into the run folder (needs `regard[tensorboard]`)")
    wandb: bool = option(False, "also log to Weights & Biases (needs `regard[wandb]`)")
    mlflow: bool = option(False, "also log to MLflow (needs `regard[mlflow]`)")
    timeout: float = option(600.0, "seconds that one of several processes waits for another; then the run ends")
    layout: Layout = field(default_factory=Layout, metadata={"help": "how several processes share the work"})
    processes: int = option(1, "number of processes on this machine, one for each GPU")
    restarts: int = option(3, "with --processes: how often to continue after a process has failed")


@dataclass(frozen=True)
class TrainOptions(ObserverOptions):
    """Options of `regard train`."""

    recipe: str = argument("shakespeare", "a recipe's name (`regard recipes` lists them) or a TOML file")
    name: str | None = option(None, "the run's name; default: the recipe's name with a number")
    runs: Path = option(RUNS, "the folder that holds runs")
    init: str | None = option(
        None, "start from the weights of a run or a published model (`regard models`); scratch: from random weights"
    )
    seed: int | None = option(None, "random seed of weights, batches and dropout; default: the recipe's")
    again: bool = option(False, "continue the run if it exists, else create it; needs --name (docs/scale.md)")


def train(options: TrainOptions, keys: Mapping[str, object]) -> int:
    """Train a recipe, or the experiment in a TOML file, into a new run folder.

    Every key of the experiment is an option too; `regard recipes NAME` lists all of them with their values.

      --train.steps 500          number of updates; or, instead,
      --train.seconds 90         duration of the whole command; or
      --train.tokens 1000000     number of tokens; or
      --train.epochs 3           how many times to go through the training part
      --data.path FILE           your own text
      --model.width 256          a size
      --model.position rotary --model.position.base 5e5    a choice, and a key of the chosen kind
      --model gpt2-medium --model.layers 2                 a preset, and a key that differs
      --init RUN --train.adapt frozen                    fine-tune the head of a trained model (docs/finetuning.md)

    Presets: shakespeare, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-small, gpt3-medium, gpt3-large, gpt3-xl,
    gpt3-2.7b, gpt3-6.7b, gpt3-13b, gpt3-175b, transformer-base, transformer-big, bert-base, bert-large,
    vit-8x8, vit-28x28, vit-32x32, vit-tiny, vit-small, vit-base, vit-large.

    Ctrl-C saves a checkpoint and stops; `regard resume` continues.
    """
    began = command_began()  # before torch is imported
    adopt_slurm()
    check_processes(options)
    many, path = options.processes > 1, Path(options.recipe)
    if many and options.again and options.name is None:
        raise UserError("--again needs --name, which says which run to continue")
    if (
        not rank() and not options.again and not is_restart(os.environ)
    ):  # what needs no torch comes first, so that common mistakes are reported at once
        Run.check(options.runs, options.name)
    init = {} if options.init is None else {"init": "none" if options.init == "scratch" else options.init}
    experiment = read_experiment(options.recipe, {**keys, **init}, options.seed)
    if many:  # without a name, --again finds the run that an earlier start of this launch has made
        again = replace(options, again=True)
        return launch("train", again if options.name is None else options, keys, experiment.train.lanes, again)
    from regard.train import check_start

    check_start(experiment, options.layout)
    prefix = options.recipe if path.suffix != ".toml" else path.resolve().parent.name if is_of_run(path) else path.stem
    run, existed = start_run(options, experiment, prefix)
    if existed and run.steps():
        experiment = run.load(type(experiment))  # complete, and with a plan that `regard resume` may have changed
    try:
        return run_training(experiment, run, options, resume=existed, began=began)
    except BaseException:  # a run without any result is removed, whatever stopped it
        if not rank() and not existed:
            run.discard()
        raise


def read_experiment(
    recipe: str, arguments: Sequence[str] | Mapping[str, object], seed: int | None = None
) -> Experiment:
    """The experiment of a recipe or a TOML file with the command line's changes, checked."""
    from regard.recipes import get

    keys, path = one_budget(arguments if isinstance(arguments, Mapping) else parse(arguments).keys), Path(recipe)
    if path.suffix == ".toml":
        table = read_toml(path)
        if not table:
            raise UserError(f"{path} is empty; give it the keys of an experiment, as in the config.toml of a run")
        from regard.train import Experiment

        if is_of_run(path):
            experiment = Run.open(path.parent).load(Experiment)
        else:  # a copy of a run's config has a schema
            experiment = load(Experiment, migrate(table, str(path)) if "schema" in table else table, path)
    else:
        experiment = get(recipe)
    return override(experiment, keys if seed is None else {**keys, "seed": seed}).checked()


def is_of_run(path: Path) -> bool:
    """Whether a TOML file is the config of a run, in its folder."""
    return path.name == "config.toml" and (path.parent / "checkpoints").is_dir()


def one_budget(keys: Mapping[str, object]) -> dict[str, object]:
    """The keys, with the other budgets switched off where one is given; two different ones are refused."""
    given = [name for name in BUDGETS if keys.get(f"train.{name}", "none") != "none"]
    if len(given) > 1:
        both = " and ".join(f"--train.{name}" for name in given)
        raise UserError(f"{both} are given, but a run has one budget; leave out all but one")
    others = {f"train.{name}": "none" for name in BUDGETS[1:] if given and name not in given}
    return {**others, **keys}


def key_like(name: str) -> str | None:
    """The key of an experiment that is most similar to `name`: `--train.steps` for "steps"."""
    from regard.train import Experiment

    name = name.replace("-", "_")
    all_paths = [key.path for key in keys_of(Experiment)]
    paths = {path.rpartition(".")[2]: path for path in reversed(all_paths)} | OTHER_WORDS
    whole = {path.replace(".", "_"): path for path in all_paths}
    if (meant := nearest(name, whole, cutoff=0.9)) is not None:
        return f"--{whole[meant]}"
    meant = nearest(name, paths)
    return None if meant is None else f"--{paths[meant]}"


def run_training(experiment: Experiment, run: Run, options: ObserverOptions, *, resume: bool, began: float) -> int:
    """Train to the end or to a signal, write the report, and print the result."""
    from regard.commands.report import nearest_recipe
    from regard.report import report_at_end, reserved
    from regard.train import train

    budget = experiment.train.seconds
    trial = "" if budget is None or resume else f", and a few steps to see how many fit into {budget:g} seconds"
    reserve = 0.0 if budget is None else reserved(budget)
    if not rank():
        print(f"{run.path}: preparing data and model{trial}", file=sys.stderr, flush=True)
    with nullcontext() if rank() else report_at_end(run, nearest_recipe(run)) as deadline:
        watching = observers(options, resume)
        result = train(experiment, run, watching, resume, options.timeout, options.layout, began=began, reserve=reserve)
        if deadline is not None:
            deadline.until = result.until
    if rank():
        pass  # only the first process prints
    elif options.json:
        shown = {name: value for name, value in result._asdict().items() if name != "until"}
        print(json.dumps({**shown, "path": str(result.path)}))
    elif not result.interrupted:
        validated = validation_in_words(run, result, experiment)
        print(f"{result.path}: {result.step:,} step{'s' * (result.step != 1)}{validated}")
        print(f"report: {run.file('report.html')}")
        for line in next_commands(experiment, run):
            print(line + with_options())
    return 130 if result.interrupted else 0


def next_commands(experiment: Experiment, run: Run) -> Iterator[str]:
    """What to do with the trained model."""
    from regard.data import SyntheticConfig
    from regard.tasks import Measured

    generated, task = isinstance(experiment.data, SyntheticConfig), experiment.task
    labelled = not experiment.model.generates and isinstance(task.build(), Measured)
    if generated or (labelled and run.config["data"].get("test")):
        yield f"evaluate: regard evaluate {run.path} --part test"
    if experiment.model.generates and not generated:
        verb = "translate" if experiment.data.kind == "pairs" else "generate"
        yield f"{verb}: regard {verb} {run.path}"
    elif task.kind in ("classification", "tagging", "answering"):
        yield f"predict: regard predict {run.path} TEXT"


def validation_in_words(run: Run, result: TrainingResult, experiment: Experiment) -> str:
    """The validation loss, what else the task is judged by, and how much of the validation part they are of."""
    from regard.train.evaluate import judged_in_words
    from regard.train.live import loss_in_words

    if result.validation_loss is None:
        return ""
    record = next(record for record in reversed(run.metrics()) if "validation_loss" in record)
    found = f", validation loss {loss_in_words(result.validation_loss, record.get('validation_error'))}"
    share, others = record.get("validation_share"), judged_in_words(experiment.task.build(), record)
    if share is None:
        return found + others
    found += f" (95 %){others}, on {100 * share:.2g} % of the validation set"
    if run.config["data"].get("kind", "text") != "text":
        return found
    return f"{found}; regard evaluate {result.path}{with_options()} reads all of it"


def observers(options: ObserverOptions, resume: bool) -> list[Observer]:
    """The observers of a training."""
    from regard.report import ModelMeasurements
    from regard.train import ResumeNotice
    from regard.train.live import LiveCurve, LiveLine, RankLine

    found: list[Observer] = [ResumeNotice()] if resume and not rank() else []
    found += [ModelMeasurements(), LiveCurve() if options.watch else LiveLine()]
    if "--debug" in sys.argv and "RANK" in os.environ:
        found.append(RankLine(rank()))
    if options.doctor:
        from regard.doctor import Doctor

        found.append(Doctor())
    if options.tensorboard:
        from regard.train.tensorboard import TensorBoard

        found.append(TensorBoard())
    if options.wandb or options.mlflow:
        from regard.train.trackers import MLflow, WandB

        found += [*([WandB()] if options.wandb else []), *([MLflow()] if options.mlflow else [])]
    return found
