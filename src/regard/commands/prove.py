"""`regard prove`."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, CommandOptions, is_run, open_run, split_names
from regard.config import argument, hint, option
from regard.errors import UserError
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.prove import Certificate, ModelUnderTest

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
    """Test what a model claims: causality, padding, packing, decoding, backends, loss, checkpoints and more.

    The exit code is 1 if a claim fails.
    """
    target, names = options.target, split_names(options.claims)
    if options.causal is not None and not target.startswith(FOREIGN):
        raise UserError("--causal and --no-causal are for models of transformers: regard prove hf:FOLDER")
    from regard.prove import certify

    if target.startswith(FOREIGN):
        from regard.prove.foreign import certify_folder

        folder = Path(target.removeprefix(FOREIGN)).expanduser()
        with waiting("testing"):
            certificate = certify_folder(folder, options.causal, names)
    else:
        subject = _run(options) if is_run(target, options.runs) else _recipe(options)
        with waiting("preparing") as progress:
            certificate = certify(subject, claims=names, progress=progress)
    options.show({"target": target, **certificate.plain()}, _table(target, certificate))
    return 0 if certificate.sound else 1


def _recipe(options: ProveOptions) -> ModelUnderTest:
    """The recipe's model at a reduced size, with its task and data."""
    from regard.models.device import find_device
    from regard.prove.reduced import reduced_experiment
    from regard.recipes import get, names

    if options.target not in names() and not Path(options.target).exists():
        known = hint(options.target, names())
        raise UserError(f"{options.target!r} is neither a run in {options.runs} nor a recipe; {known}")
    subject = reduced_experiment(get(options.target), options.data)
    assert subject.model is not None
    subject.model.to(find_device(options.device))
    return subject


def _run(options: ProveOptions) -> ModelUnderTest:
    """A trained model with its tokenizer and, if it is still available, its data."""
    from regard.generate.load import load_model
    from regard.models.device import find_device
    from regard.prove import ModelUnderTest
    from regard.train import Experiment

    run = open_run(options.target, options.runs)
    experiment = run.load(Experiment)
    loaded = load_model(run, find_device(options.device), options.step)
    about, data, task = f"step {loaded.step:,} of {run.path}, its own weights", None, None
    try:
        data, task = experiment.data.build(loaded.model.config.context), experiment.task.build()
        loaded.check_data(data)
    except UserError as missing:
        about, data, task = f"{about}; without its data: {missing}", None, None
    return ModelUnderTest(loaded.model, tokenizer=loaded.tokenizer, data=data, task=task, about=about)


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
