"""`regard prove`."""

from __future__ import annotations

import json as jsonlib
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from regard.commands.common import RUNS, is_run, open_run
from regard.commands.waiting import waiting
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.prove import Certificate

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
Claims = Annotated[str | None, tyro.conf.arg(metavar="CLAIM,CLAIM")]
FOREIGN = "hf:"


def prove(
    target: Target,
    /,
    *,
    claims: Claims = None,
    causal: bool = False,
    no_causal: bool = False,
    data: bool = False,
    step: int | None = None,
    device: str = "cpu",
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """Whether a model does what it claims: no look ahead, padding, packing and decoding change nothing, and more.

    The exit code is 1 if a claim fails.

    Args:
        target: A recipe, a run's folder or name, or hf:FOLDER with the config.json of a transformers model.
        claims: Only these, such as future,step; by default all that can be judged.
        causal: Judge a transformers model as one in which no token sees a later one.
        no_causal: Judge a transformers model as one that sees both ways.
        data: For a recipe, judge its own data, fetched if need be, instead of a made-up text.
        step: A checkpoint's step of a run; by default the newest.
        device: Where to run: auto, cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print the certificate as JSON.
    """
    if causal and no_causal:
        raise UserError("--causal and --no-causal contradict each other; leave one out")
    if (causal or no_causal) and not target.startswith(FOREIGN):
        raise UserError("--causal and --no-causal are for models of transformers: regard prove hf:FOLDER")
    wanted = None if claims is None else [name for name in claims.replace(" ", "").split(",") if name]
    if target.startswith(FOREIGN):
        from regard.prove.foreign import certify_folder

        folder = Path(target.removeprefix(FOREIGN)).expanduser()
        with waiting("judging"):
            found = certify_folder(folder, True if causal else False if no_causal else None, wanted)
    elif is_run(target, runs):
        found = _run(target, runs, step, device, wanted)
    else:
        found = _recipe(target, data, device, wanted)
    if json:
        print(jsonlib.dumps({"target": target, **found.plain()}))
    else:
        print(_table(target, found))
    return 0 if found.sound else 1


def _recipe(name: str, own: bool, device: str, claims: list[str] | None) -> Certificate:
    from regard.generate.load import find_device
    from regard.prove import certify
    from regard.prove.small import small_arguments
    from regard.recipes import get

    given = small_arguments(get(name), own)
    given["model"] = given["model"].to(find_device(device))
    with waiting("getting ready") as say:
        return certify(**given, claims=claims, say=say)


def _run(name: str, runs: Path, step: int | None, device: str, claims: list[str] | None) -> Certificate:
    """A trained model with its own weights, tokenizer and, if they are still there, data."""
    from regard.config import load
    from regard.generate.load import find_device, load_model
    from regard.prove import certify
    from regard.train import Experiment

    run = open_run(name, runs)
    experiment: Any = load(Experiment, run.config, source=str(run.path / "config.toml"))
    loaded = load_model(run, find_device(device), step)
    about, found = f"step {loaded.step:,} of {run.path}, its own weights", None
    try:
        found = experiment.data.build(loaded.model.config.context)
        loaded.check_data(found)
    except UserError as missing:
        about += f"; its data is left out: {missing}"
    task = experiment.task.build()
    given = {"task": task, "data": found} if found is not None else {}
    with waiting("getting ready") as say:
        return certify(model=loaded.model, tokenizer=loaded.tokenizer, claims=claims, about=about, say=say, **given)


def _table(target: str, found: Certificate) -> str:
    """A line for each claim, the evidence folded under itself."""
    names, width = max(len(one.claim) for one in found.verdicts), shutil.get_terminal_size((100, 24)).columns
    lines, left = [f"{target}: {found.about}" if found.about else target, ""], names + 13
    for one in found.verdicts:
        told = textwrap.wrap(one.evidence, max(30, width - left)) or [""]
        lines.append(f"{one.claim:{names}}  {one.verdict:9}  {told[0]}")
        lines += [" " * left + more for more in told[1:]]
    held = sum(one.verdict == "holds" for one in found.verdicts)
    failed = f"{len(found.failed)} fail: {', '.join(found.failed)}" if found.failed else "none fails"
    left_out = len(found.verdicts) - held - len(found.failed)
    unasked = f", {left_out} not asked" if left_out else ""
    return "\n".join([*lines, "", f"{held} of {len(found.verdicts)} claims hold, {failed}{unasked}"])
