"""`regard prove`."""

from __future__ import annotations

import shutil
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Literal

from regard.commands.common import RUNS, CommandOptions, check_parent, is_run, open_run, say_newest, split_names
from regard.config import argument, hint, option
from regard.errors import UserError
from regard.runs.disk import JsonObject
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.prove import Certificate, ModelUnderTest
    from regard.runs import Run

FOREIGN = "hf:"
EFFORTS = ("quick", "full")
#: The options that repeat a certificate, and their types.
REQUEST: dict[str, tuple[type, ...]] = {
    "target": (str,),
    "claims": (str, NoneType),
    "effort": (str,),
    "seed": (int,),
    "causal": (bool, NoneType),
    "data": (bool,),
    "step": (int, NoneType),
}


@dataclass(frozen=True)
class ProveOptions(CommandOptions):
    """Options of `regard prove`."""

    target: str | None = argument(
        None,
        "a recipe, a run's folder or name, or hf:FOLDER with the config.json of a transformers model; "
        "default: the newest run that was trained here",
    )
    claims: str | None = option(None, "only these, such as future,step; default: all that apply", metavar="CLAIM,CLAIM")
    effort: Literal["quick", "full"] = option("quick", "how many cases each claim is tested on")
    seed: int = option(0, "the seed that draws the cases")
    causal: bool | None = option(None, "for hf: test the model as a causal one; --no-causal: as a bidirectional one")
    data: bool = option(False, "for a recipe: test on its own data, fetched if necessary, instead of a synthetic text")
    step: int | None = option(None, "step of a run's checkpoint; default: the newest")
    device: str = option("cpu", "where to run: auto, cpu, cuda, mps")
    out: Path | None = option(
        None, "write the certificate to this .json file, and a page beside it; default for a run: in its folder"
    )
    check: Path | None = option(None, "test again what this certificate.json says, and compare", metavar="FILE")
    runs: Path = option(RUNS, "the folder that holds runs")


def prove(options: ProveOptions) -> int:
    """Test what a model claims: causality, padding, packing, decoding, backends, loss, checkpoints and more.

    Each claim is tested in several number formats, lengths, batch sizes and pieces. The exit code is 1 if a claim
    fails, or if `--check` finds another result than the certificate has.
    """
    if options.out is not None and options.out.suffix != ".json":
        raise UserError(f"--out {options.out} is no .json file; the page is written beside it")
    check_parent(options.out)
    from regard.prove.certificate_file import certificate_record, differences, read_certificate, write_certificate

    given = read_certificate(options.check) if options.check else None
    if given is not None:
        options = _repeated(options, given["request"])
    target, run = options.target, None
    if target is None or not target.startswith(FOREIGN):
        if options.causal is not None:
            raise UserError("--causal and --no-causal are for models of transformers: regard prove hf:FOLDER")
        if target is None or is_run(target, options.runs):
            run = open_run(target, options.runs)
            if target is None:
                say_newest(run)
            target = target or str(run.path)
    options = replace(options, target=target)
    subject, certificate = _certified(options, target, run)
    request = {name: vars(options)[name] for name in REQUEST}
    record = certificate_record(certificate, subject, request)
    changed = [] if given is None else differences(given, record)
    lines, path = _table(target, certificate), options.out or (run and run.file("certificate.json"))
    if path is not None and given is None:
        try:
            lines += f"\n{path}, {write_certificate(record, path).name}"
        except UserError as error:  # of a run that cannot be written to, the results are still shown
            if options.out is not None:
                raise
            lines += f"\n{error}"
    if given is not None:
        lines += "\n" + ("\n".join(changed) or f"{options.check}: the same hashes and verdicts")
    more: JsonObject = {} if run is None else {"damaged": run.damaged}
    more |= {} if given is None else {"differences": changed}
    options.show({"target": target, **record, **more}, lines)
    return int(bool(changed)) if given is not None else 0 if certificate.sound else 1


def _repeated(options: ProveOptions, request: JsonObject) -> ProveOptions:
    """The options of a certificate; a target on the command line replaces that of the certificate."""
    known = {name: request[name] for name in REQUEST if name in request}
    for name, kinds in REQUEST.items():
        if not isinstance(known.get(name), kinds) or (name == "effort" and known[name] not in EFFORTS):
            raise UserError(f"{options.check} is not a certificate: its request has no valid {name}")
    return replace(options, **{**known, "target": options.target or known["target"]})


def _certified(options: ProveOptions, target: str, run: Run | None) -> tuple[ModelUnderTest, Certificate]:
    from regard.prove import certify

    names, quietly = split_names(options.claims), nullcontext()
    with waiting(f"preparing {target}") as progress:
        if target.startswith(FOREIGN):
            from regard.prove.foreign import CLAIMS, folder_subject, quiet

            subject = folder_subject(Path(target.removeprefix(FOREIGN)).expanduser(), options.causal)
            names, quietly = names or CLAIMS, quiet()
        else:
            subject = _recipe(options) if run is None else _run(options, run)
        with quietly:
            found = certify(
                subject,
                claims=names,
                effort=options.effort,
                seed=options.seed,
                progress=lambda line: progress(f"{target}: {line}"),
            )
    return subject, found


def _recipe(options: ProveOptions) -> ModelUnderTest:
    """The recipe's model at a reduced size, with its task and data."""
    from regard.models.device import find_device
    from regard.prove.reduced import reduced_experiment
    from regard.recipes import get, names

    assert options.target is not None
    if options.target not in names() and not Path(options.target).exists():
        known = hint(options.target, names())
        raise UserError(f"{options.target!r} is neither a run in {options.runs} nor a recipe; {known}")
    subject = reduced_experiment(get(options.target), options.data)
    assert subject.model is not None
    subject.model.to(find_device(options.device))
    return subject


def _run(options: ProveOptions, run: Run) -> ModelUnderTest:
    """A trained model with its tokenizer and, if it is still available, its data."""
    from regard.generate.load import load_trained
    from regard.models.device import find_device
    from regard.prove import ModelUnderTest
    from regard.train import Experiment
    from regard.train.pretrained import build_data

    experiment = run.load(Experiment)
    loaded = load_trained(run, find_device(options.device), options.step)
    about, data, task = f"step {loaded.step:,} of {run.path}, its own weights", None, None
    try:
        data, task = build_data(experiment, run), experiment.task.build()
        loaded.check_data(data)
    except UserError as missing:
        about, data, task = f"{about}; without its data: {missing}", None, None
    return ModelUnderTest(loaded.model, tokenizer=loaded.tokenizer, data=data, task=task, about=about)


def _table(target: str, certificate: Certificate) -> str:
    """One line per claim, with the evidence wrapped in its own column."""
    results, columns = certificate.results, shutil.get_terminal_size((100, 24)).columns
    claims, verdicts = (
        max(map(len, names)) for names in zip(*((one.claim, one.verdict) for one in results), strict=True)
    )
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
