"""The command line: one function per command. Torch is imported by the commands that need it, never by ``--help``."""

from __future__ import annotations

import functools
import json as jsonlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from regard import __version__
from regard.errors import UserError

Positional = tyro.conf.Positional
RUNS = Path("runs")


def train(
    recipe: Annotated[str, Positional] = "shakespeare",
    /,
    *,
    name: str | None = None,
    runs: Path = RUNS,
    seed: int | None = None,
    json: bool = False,
    overrides: Annotated[tuple[str, ...], tyro.conf.Suppress] = (),
) -> int:
    """Train a recipe, or the experiment in a TOML file, into a new run folder.

    Every key of the experiment is an option: --train.steps 500, --model.width 256, --data.path FILE,
    --model.position rotary --model.position.base 5e5. `regard recipes NAME` lists them with their values.

    Args:
        recipe: A recipe's name (`regard recipes`) or a TOML file.
        name: The run's name; by default the recipe's with a number.
        runs: The folder that holds runs.
        seed: Decides weights, batches and dropout.
        json: Print the outcome as JSON.
    """
    from regard.config import override, read, to_toml
    from regard.recipes import get
    from regard.runs import Run, environment
    from regard.train import Experiment

    path = Path(recipe)
    experiment = read(path, Experiment) if path.suffix == ".toml" else get(recipe)
    given = [*overrides, *([] if seed is None else ["--seed", str(seed)])]
    experiment = override(experiment, given).checked()
    prefix = path.stem if path.suffix == ".toml" else recipe
    # Of several processes one makes the folder, and the others join it.
    text = to_toml(experiment)
    run = _joined(runs, name) if _rank() else Run.create(runs, name, text, environment(), prefix=prefix)
    try:
        return _train(experiment, run, json=json, resume=False)
    except UserError:
        run.discard()
        raise


def resume(run: Annotated[str | None, Positional] = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """Go on with a run from its newest whole checkpoint; the end is bit-identical to a run never stopped.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print the outcome as JSON.
    """
    from regard.config import load
    from regard.train import Experiment

    found = _open(run, runs)
    experiment = load(Experiment, found.config, source=str(found.path / "config.toml"))
    return _train(experiment, found, json=json, resume=True)


def _train(experiment: Any, run: Any, *, json: bool, resume: bool) -> int:
    from regard.train import LiveLine, train

    budget = experiment.train.seconds
    trial = "" if budget is None else f", and a few steps to see how many fit into {budget:g} seconds"
    print(f"{run.path}: preparing text and model{trial}", file=sys.stderr, flush=True)
    result = train(experiment, run, observers=[LiveLine()], resume=resume)
    if _rank():
        pass  # of several processes the first one speaks
    elif json:
        print(jsonlib.dumps({**result._asdict(), "path": str(result.path)}))
    elif not result.interrupted:
        loss = "" if result.validation_loss is None else f", validation loss {result.validation_loss:.4f}"
        print(f"{result.path}: {result.step:,} steps{loss}\nwrite with it: regard generate {result.path}")
    return 130 if result.interrupted else 0


def generate(
    run: Annotated[str | None, Positional] = None,
    /,
    *,
    prompt: tuple[str, ...] = ("\n",),
    tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 1,
    device: str = "cpu",
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """Let a trained model write.

    Args:
        run: The run's folder or name; by default the newest run.
        prompt: What to go on from; several prompts are written on at once.
        tokens: How many tokens to write.
        temperature: Below 1 bolder guesses are rarer; 0 always takes the likeliest token.
        top_k: Choose among the k likeliest tokens only.
        seed: Decides the draws.
        device: Where to run: cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print the texts as JSON.
    """
    import time

    from regard.generate import Sampling, decode
    from regard.generate.load import load_writer

    try:
        sampling = Sampling(temperature, top_k)
    except ValueError as problem:
        raise UserError(f"--{str(problem).replace('top_k', 'top-k')}") from problem
    if tokens < 1:
        raise UserError(f"--tokens must be at least 1, not {tokens}")
    found = _open(run, runs)
    model, tokenizer, step = load_writer(found, device)
    prompts = [tokenizer.encode(text).tolist() for text in prompt]
    streams = len(prompts) == 1 and not json
    written: list[list[int]] = [[] for _ in prompts]
    if streams:
        print(prompt[0], end="", flush=True)
    began = time.perf_counter()
    for row in decode(model, prompts, tokens, sampling, seed=seed, context=model.config.context, device=device):
        for text, token in zip(written, row, strict=True):
            text.append(token)
        if streams:
            print(tokenizer.decode(row), end="", flush=True)
    seconds = time.perf_counter() - began
    texts = [tokenizer.decode(text) for text in written]
    if json:
        made = [{"prompt": p, "text": t} for p, t in zip(prompt, texts, strict=True)]
        print(jsonlib.dumps({"run": str(found.path), "step": step, "seconds": seconds, "texts": made}))
    elif streams:
        print()
    else:
        for start, text in zip(prompt, texts, strict=True):
            print(f"--- {start!r}\n{start}{text}")
    print(f"{tokens * len(prompts) / seconds:,.0f} tokens/s", file=sys.stderr)
    return 0


def info(run: Annotated[str | None, Positional] = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """What a run is and how it went.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print it as JSON.
    """
    found = _open(run, runs)
    metrics = found.metrics()
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), float)]
    held_out = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    summary = {
        "run": str(found.path),
        "steps": max((m["step"] for m in metrics), default=0),
        "of": found.config["train"].get("steps"),
        "loss": losses[-1] if losses else None,
        "validation_loss": next(reversed(held_out.values()), None),
        "seconds": max((m.get("seconds", 0) for m in metrics), default=0),
        "checkpoints": found.steps(),
        "model": found.config["model"],
        "data": found.config["data"],
        "environment": found.environment,
    }
    if json:
        print(jsonlib.dumps(summary))
        return 0
    from regard.runs.curve import curve

    model = summary["model"]
    shape = ", ".join(f"{key} {model[key]}" for key in ("layers", "heads", "width", "context") if key in model)
    print(f"{found.path}: {model['kind']} ({shape}) on {summary['data'].get('path') or summary['data'].get('source')}")
    print(f"step {summary['steps']:,} of {summary['of']:,}, {summary['seconds']:.0f} s, checkpoints {found.steps()}")
    if losses:
        print(curve(metrics))
    return 0


def recipes(name: Annotated[str | None, Positional] = None, /, *, json: bool = False) -> int:
    """List the recipes, or every key of one.

    Args:
        name: A recipe, to see all its keys and their values.
        json: Print it as JSON.
    """
    from regard.recipes import about, get, names

    if name is None:
        listed = {one: about(one) for one in names()}
        lines = [f"{one:20} {text.splitlines()[0] if text else ''}" for one, text in listed.items()]
        print(jsonlib.dumps(listed) if json else "\n".join(lines))
        return 0
    from regard.config import dump, keys

    experiment = get(name)
    if json:
        print(jsonlib.dumps(dump(experiment)))
        return 0
    print(about(name), end="\n\n")
    for key in keys(experiment):
        choices = f" ({', '.join(key.choices)})" if key.choices else ""
        print(f"--{key.path:32} {'none' if key.default is None else key.default!s:12} {key.help}{choices}")
    return 0


def _rank() -> int:
    """Which of several processes this is, as torchrun and its like say; 0 for one alone."""
    return int(os.environ.get("RANK", 0))


def _joined(runs: Path, name: str | None, patience: float = 120) -> Any:
    """The run that the first of several processes makes."""
    import time

    from regard.runs import Run

    if name is None:
        raise UserError("several processes train one run: give it a --name, so that all of them find it")
    end = time.monotonic() + patience
    while not (runs / name / "config.toml").exists():
        if time.monotonic() > end:
            raise UserError(
                f"the first process made no run {runs / name}; all of them need the same folder and options"
            )
        time.sleep(0.1)
    return Run.open(runs / name)


def _open(run: str | None, runs: Path) -> Any:
    """The run of that folder or name; the newest if none is named."""
    from regard.runs import Run

    if run is None:
        found = sorted(runs.glob("[!.]*/config.toml"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise UserError(f"there is no run in {runs}; train one first: regard train")
        return Run.open(found[-1].parent)
    return Run.open(Path(run) if Path(run).is_dir() or not (runs / run).is_dir() else runs / run)


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "resume": resume,
    "generate": generate,
    "info": info,
    "recipes": recipes,
}


def main(argv: list[str] | None = None) -> int:
    """``regard COMMAND ...``. A person's mistake is one sentence and exit code 2; --debug shows the traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"regard {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    try:
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}; choose from {', '.join(COMMANDS)}")
        plain, overrides = split_overrides(rest)
        if overrides and command != "train":
            raise UserError(
                f"`regard {command}` takes no {overrides[0]}; only `regard train` sets keys of an experiment"
            )
        chosen = {"overrides": tuple(overrides)} if command == "train" else {}
        return tyro.cli(functools.partial(COMMANDS[command], **chosen), args=plain, prog=f"regard {command}")
    except UserError as problem:
        if debug:
            raise
        print(f"regard: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output went away: `regard generate | head`
        sys.stderr.close()
        return 0


def split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What belongs to the command, and what sets keys of the experiment: options with a dot in their name."""
    plain, overrides, i = [], [], 0
    while i < len(arguments):
        here = arguments[i]
        if here.startswith("--") and "." in here.split("=", 1)[0]:
            takes = "=" not in here and i + 1 < len(arguments) and not arguments[i + 1].startswith("--")
            overrides += arguments[i : i + 1 + takes]
            i += 1 + takes
        else:
            plain.append(here)
            i += 1
    return plain, overrides


def _overview() -> str:
    lines = ["regard: sequence models on one attention operator", "", "usage: regard COMMAND [options]", ""]
    lines += [f"  {name:10} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "regard COMMAND --help says more. --json where a program reads the result."])


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
