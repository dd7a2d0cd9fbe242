"""`regard prove`."""

from __future__ import annotations

import json as jsonlib
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.commands.common import RUNS, is_run, open_run
from regard.commands.waiting import waiting
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.prove import Certificate, ModelUnderTest

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
    """Test what a model claims: causality, padding, packing, decoding, backends, loss, checkpoints and more.

    The exit code is 1 if a claim fails.

    Args:
        target: A recipe, a run's folder or name, or hf:FOLDER with the config.json of a transformers model.
        claims: Only these claims, such as future,step; by default all that apply.
        causal: Test a transformers model as a causal one.
        no_causal: Test a transformers model as a bidirectional one.
        data: For a recipe, use its own data, downloaded if necessary, instead of random text.
        step: The step of a run's checkpoint; by default the newest.
        device: Device to run on: auto, cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print the certificate as JSON.
    """
    if causal and no_causal:
        raise UserError("--causal and --no-causal contradict each other; leave one out")
    if (causal or no_causal) and not target.startswith(FOREIGN):
        raise UserError("--causal and --no-causal are for models of transformers: regard prove hf:FOLDER")
    from regard.prove import certify

    names = None if claims is None else [name for name in claims.replace(" ", "").split(",") if name]
    if target.startswith(FOREIGN):
        from regard.prove.foreign import certify_folder

        folder = Path(target.removeprefix(FOREIGN)).expanduser()
        with waiting("testing"):
            certificate = certify_folder(folder, True if causal else False if no_causal else None, names)
    else:
        subject = _run(target, runs, step, device) if is_run(target, runs) else _recipe(target, data, device)
        with waiting("preparing") as progress:
            certificate = certify(subject, claims=names, progress=progress)
    if json:
        print(jsonlib.dumps({"target": target, **certificate.plain()}))
    else:
        print(_table(target, certificate))
    return 0 if certificate.sound else 1


def _recipe(name: str, own_data: bool, device: str) -> ModelUnderTest:
    """The recipe's model at a reduced size, with its task and data."""
    from regard.generate.load import find_device
    from regard.prove.reduced import reduced_experiment
    from regard.recipes import get

    subject = reduced_experiment(get(name), own_data)
    assert subject.model is not None
    subject.model.to(find_device(device))
    return subject


def _run(name: str, runs: Path, step: int | None, device: str) -> ModelUnderTest:
    """A trained model with its tokenizer and, if it is still available, its data."""
    from regard.config import load
    from regard.generate.load import find_device, load_model
    from regard.prove import ModelUnderTest
    from regard.train import Experiment

    run = open_run(name, runs)
    experiment = load(Experiment, run.config, source=str(run.path / "config.toml"))
    loaded = load_model(run, find_device(device), step)
    about, data, task = f"step {loaded.step:,} of {run.path}, its own weights", None, None
    try:
        data, task = experiment.data.build(loaded.model.config.context), experiment.task.build()
        loaded.check_data(data)
    except UserError as missing:
        about, data, task = f"{about}; without its data: {missing}", None, None
    return ModelUnderTest(model=loaded.model, tokenizer=loaded.tokenizer, data=data, task=task, about=about)


def _table(target: str, certificate: Certificate) -> str:
    """One line per claim, with the evidence wrapped in its own column."""
    results, columns = certificate.results, shutil.get_terminal_size((100, 24)).columns
    claims, verdicts = (max(len(result[i]) for result in results) for i in (2, 0))
    lines, left = [f"{target}: {certificate.about}" if certificate.about else target, ""], claims + verdicts + 4
    for result in results:
        first, *more = textwrap.wrap(result.evidence, max(30, columns - left)) or [""]
        lines.append(f"{result.claim:{claims}}  {result.verdict:{verdicts}}  {first}")
        lines += [" " * left + line for line in more]
    held, failed = sum(result.verdict == "holds" for result in results), certificate.failed
    failing = f"{len(failed)} fail: {', '.join(failed)}" if failed else "none fails"
    others = len(results) - held - len(failed)
    skipped = f", {others} not applicable" if others else ""
    return "\n".join([*lines, "", f"{held} of {len(results)} claims hold, {failing}{skipped}"])
