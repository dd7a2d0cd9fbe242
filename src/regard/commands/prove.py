"""`regard prove`."""

from __future__ import annotations

import json
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.commands.common import RUNS, CommandOptions, is_run, open_run
from regard.commands.waiting import waiting
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.prove import Certificate

FOREIGN = "hf:"


@dataclass(frozen=True)
class ProveOptions(CommandOptions):
    """Options of `regard prove`."""

    target: str = argument(
        "", "a recipe, a run's folder or name, or hf:FOLDER with the config.json of a transformers model", required=True
    )
    claims: str | None = option(None, "only these, such as future,step; default: all that apply", metavar="CLAIM,CLAIM")
    causal: bool | None = option(None, "for hf: test the model as a causal one; --no-causal: as a bidirectional one")
    data: bool = option(False, "for a recipe: test on its own data, fetched if necessary, instead of a synthetic text")
    step: int | None = option(None, "step of a run's checkpoint; default: the newest")
    device: str = option("cpu", "where to run: auto, cpu, cuda, mps")
    runs: Path = option(RUNS, "the folder that holds runs")


def prove(options: ProveOptions) -> int:
    """Test a model's claims: causality, invariance to padding, packing and cached decoding, and more.

    The exit code is 1 if a claim fails.
    """
    target, step, device, runs, data = options.target, options.step, options.device, options.runs, options.data
    causal, claims = options.causal, options.claims
    if causal is not None and not target.startswith(FOREIGN):
        raise UserError("--causal and --no-causal are for models of transformers: regard prove hf:FOLDER")
    wanted = None if claims is None else [name for name in claims.replace(" ", "").split(",") if name]
    if target.startswith(FOREIGN):
        from regard.prove.foreign import certify_folder

        folder = Path(target.removeprefix(FOREIGN)).expanduser()
        with waiting("judging"):
            found = certify_folder(folder, causal, wanted)
    elif is_run(target, runs):
        found = _run(target, runs, step, device, wanted)
    else:
        found = _recipe(target, data, device, wanted)
    if options.json:
        print(json.dumps({"target": target, **found.plain()}))
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
    from regard.generate.load import find_device, load_writer
    from regard.prove import certify
    from regard.train import Experiment

    run = open_run(name, runs)
    experiment: Any = run.load(Experiment)
    writer = load_writer(run, find_device(device), step)
    about, found = f"step {writer.step:,} of {run.path}, its own weights", None
    try:
        found = experiment.data.build(writer.model.config.context)
        writer.check(found)
    except UserError as missing:
        about += f"; its data is left out: {missing}"
    task = experiment.task.build()
    given = {"task": task, "data": found} if found is not None else {}
    with waiting("getting ready") as say:
        return certify(model=writer.model, tokenizer=writer.tokenizer, claims=claims, about=about, say=say, **given)


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
