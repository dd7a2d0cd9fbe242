"""Checks, one class per kind of fault that a training run can have, and what they find.

The files in ``checks/`` are imported on first use; a class in a file outside of the package is registered when it is
defined. A check overrides the hooks that it needs:

    class LossTooLow(Check):
        kind, description = "loss_too_low", "the loss is suspiciously low"

        def on_history(self, history: History) -> Findings:
            if history.losses and history.losses[-1] < 0.01:
                yield self.finding("", f"the loss is {history.losses[-1]:.3g}", "label leakage", "check the targets")

Each threshold is defined in the file of its check, with the reason for its value. A healthy run stays clear of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Self, get_type_hints

from torch import Tensor

from regard.config import override
from regard.config.parts import catalog
from regard.doctor.context import History, RecentBatches, Record, Resources, TrainingRun
from regard.doctor.gradients import Gradients
from regard.doctor.model_pass import ModelPass
from regard.doctor.replay import ReplayedStep
from regard.doctor.side_pass import SidePass
from regard.errors import UserError
from regard.prove.batches import Batch, has_tokens
from regard.runs import Run
from regard.train import TrainingStep


@dataclass(frozen=True)
class Finding:
    """One fault of a training run."""

    kind: str  # that of the check that found it
    where: str  # a module's name, a batch's number, a key of the experiment
    evidence: str  # the numbers
    cause: str  # probable cause
    change: str  # options of `regard train` that fix it, or what to look at in one's own code
    step: int = 0  # when it was last seen
    since: int = 0  # when it was first seen
    what: str = ""  # the kind in words

    @property
    def key(self) -> tuple[str, str]:
        """Findings with the same kind and place are the same finding; of several layers, those of one stack are."""
        return self.kind, re.sub(r"\d+ to \S*?\d+", "*", self.where)

    @property
    def title(self) -> str:
        """What is wrong and where."""
        return f"{self.what} in {self.where}" if self.where else self.what

    def line(self) -> str:
        """One line for a terminal."""
        return f"doctor, step {self.step:,}: {self.title} ({self.evidence}); {self.cause}; try: {self.change}"

    def record(self) -> dict[str, str | int]:
        """The record for findings.jsonl."""
        return asdict(self)

    @classmethod
    def read(cls, record: Record) -> Self | None:
        """The finding of a record; None if the record is no finding."""
        types = get_type_hints(cls)
        values = {name: record[name] for name, kind in types.items() if isinstance(record.get(name), kind)}
        return cls(**values) if len(values) == len(types) else None


def known_findings(run: Run) -> dict[tuple[str, str], Finding]:
    """The findings in a run folder by key."""
    found = (Finding.read(record) for record in run.findings())
    return {finding.key: finding for finding in found if finding is not None}


Findings = Iterable[Finding]  # what a hook yields
ANY, DEFINITIONS = "any", "definitions"  # of `Check.follows`: every other kind, and every one of rank 0
LAYER = re.compile(r"(?P<stack>[a-z_.]+\.)(?P<number>\d+)(?P<part>[^,]*)(?P<rest>.*)")  # a place in a numbered layer
MOST = 2**14  # vectors that a layer reads in a pass; over more, as in a graph of many nodes, no second pass is made
LAYERS = re.compile(
    r"(?P<stack>[a-z_.]+\.)(?P<first>\d+) to (?P=stack)(?P<last>\d+)(?P<part>.*)"
)  # in a merged finding
MANY = 3  # layers of a stack whose findings are reported as one


def explained(finding: Finding, others: Iterable[Finding]) -> bool:
    """Whether another finding explains this one."""
    checks = all_checks()
    follows = checks[finding.kind].follows if finding.kind in checks else ()
    causes = {ANY: set(checks), DEFINITIONS: {kind for kind, check in checks.items() if check.rank == 0}}
    known = set(follows).union(*(causes[group] for group in follows if group in causes))
    return any(one.kind != finding.kind and one.kind in known for one in others)


def merged(findings: Findings) -> list[Finding]:
    """The findings; those with one cause in many layers of a stack as one."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        layer = LAYER.match(one.where)
        key = (one.kind, layer["stack"], one.cause) if layer else (one.kind, one.where, one.cause, one.evidence)
        groups.setdefault(key, []).append(one)
    found = []
    for (_, stack, *_), group in groups.items():
        layers = [layer for one in group if (layer := LAYER.match(one.where))]
        numbers = {int(layer["number"]) for layer in layers}
        if len(numbers) < MANY:
            found += group
            continue
        same = ({layer[name] for layer in layers} for name in ("part", "rest"))
        where = f"{stack}{min(numbers)} to {stack}{max(numbers)}{''.join(''.join(x) for x in same if len(x) == 1)}"
        evidence = f"{len(group)} places, such as {group[0].where}: {group[0].evidence}"
        found.append(replace(group[0], where=where, evidence=evidence))
    return found


def covered(finding: Finding, others: Iterable[Finding]) -> bool:
    """Whether a finding of the same kind has named this layer as one of several."""
    layer = LAYER.match(finding.where)
    for one in others if layer else ():
        several = LAYERS.match(one.where) if one.kind == finding.kind else None
        if several and layer and (layer["stack"], layer["part"]) == (several["stack"], several["part"]):
            return int(several["first"]) <= int(layer["number"]) <= int(several["last"])
    return False


def ranked(findings: Findings) -> list[Finding]:
    """The findings, those with the best evidence first."""
    checks = all_checks()
    return sorted(findings, key=lambda one: (checks[one.kind].rank if one.kind in checks else 1, one.since))


class Check:
    """Looks for one kind of fault, during training and afterwards in a run folder.

    ``on_start``, ``on_step``, ``on_replay``, ``on_evaluating``, ``on_evaluation``, ``on_resources``, ``on_failure`` and
    ``on_end`` are called during training only; ``on_records`` and ``on_checkpoint`` only when a run folder is examined;
    the others in both cases. A hook must not change the model or the data.
    """

    kind: ClassVar[str]  # the name in findings.jsonl
    description: ClassVar[str]  # the kind in words
    rank: ClassVar[int] = 1  # of the evidence: 0 a definition is violated, 1 numbers beyond a limit, 2 merely unusual
    follows: ClassVar[tuple[str, ...]] = ()  # kinds of findings that explain this one: then it is not reported
    needs_confirmation: ClassVar[bool] = False  # report it only if two examinations in a row find it
    registry: ClassVar[dict[str, type[Check]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            return
        known = Check.registry.get(cls.kind)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"the check {cls.kind!r} is registered by {known.__module__}; choose another kind")
        Check.registry[cls.kind] = cls

    def __init__(self, run: TrainingRun):
        self.run = run

    def finding(self, where: str, evidence: str, cause: str, *changes: str) -> Finding:
        """A finding of this check's kind. Of the alternative ``changes``, only those that change this run are named."""
        change = ", or ".join(filter(self._changes_something, changes)) or "follow the evidence: no setting fixes it"
        return Finding(self.kind, where, evidence, cause, change, what=self.description)

    def _changes_something(self, change: str) -> bool:
        """Whether the options that ``change`` begins with exist in this experiment and have another value there."""
        options = re.match(r"(--\S+ [^\s,;]+ ?)*", change)
        given = options[0].split() if options else []
        try:
            return not given or override(self.run.experiment, given) != self.run.experiment
        except UserError:  # another kind of model, which has no such key
            return False

    def on_start(self) -> Findings:
        """Before the first step of a session."""
        return ()

    def on_step(self, step: TrainingStep) -> Findings:
        """After every training step."""
        return ()

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        """A step that was made a second time from the config."""
        return ()

    def on_evaluating(self) -> Findings:
        """During an evaluation, after its first batch."""
        return ()

    def on_evaluation(self, history: History) -> Findings:
        """After every evaluation."""
        return ()

    def on_history(self, history: History) -> Findings:
        """Losses, learning rates and gradient norms so far."""
        return ()

    def on_gradients(self, gradients: Gradients) -> Findings:
        """Gradient norms by layer."""
        return ()

    def on_batches(self, batches: RecentBatches) -> Findings:
        """The newest training batches."""
        return ()

    def on_resources(self, resources: Resources) -> Findings:
        """Step times and memory."""
        return ()

    def inputs(self, side_pass: SidePass) -> Iterable[Tensor]:
        """Other inputs for the common pass, which `on_model` gets by `side_pass.with_inputs`."""
        return ()

    def on_model(self, side_pass: SidePass) -> Findings:
        """The model and a batch of tokens, for side passes in evaluation mode."""
        return ()

    def on_pass(self, model_pass: ModelPass) -> Findings:
        """The model and a batch of any kind; of tokens, a `SidePass`."""
        return ()

    def on_failure(self, error: BaseException) -> Findings:
        """An error ended the training."""
        return ()

    def on_end(self, records: Sequence[Record]) -> Findings:
        """The training has ended by itself; all records of metrics.jsonl."""
        return ()

    def on_records(self, records: Sequence[Record]) -> Findings:
        """All records of metrics.jsonl."""
        return ()

    def on_checkpoint(self) -> Findings:
        """The newest checkpoint was loaded into ``run.model``. If this finds something, the model is not run."""
        return ()


@cache
def _import_checks() -> None:
    package = import_module("regard.doctor.checks")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def all_checks() -> dict[str, type[Check]]:
    """Every registered check by kind."""
    _import_checks()
    return Check.registry


def common_pass(
    run: TrainingRun, batch: Batch, checks: list[Check], number: int = 0, deep: bool = True
) -> ModelPass | None:
    """A pass over a batch; over tokens, a side pass with what the checks have declared. None: the model cannot run."""
    if not run.usable(batch):
        return None
    if not has_tokens(batch):
        model_pass = ModelPass(run, batch, number, deep)
        model_pass.deep = deep and model_pass.vectors * len(model_pass.few.inputs) <= MOST
        return model_pass
    side_pass = SidePass(run, batch, number, deep)
    side_pass.prepare(tokens for check in checks for tokens in check.inputs(side_pass))
    return side_pass


def judge_pass(check: Check, model_pass: ModelPass | None) -> Findings:
    """What a check finds in a pass."""
    if model_pass is not None:
        yield from check.on_pass(model_pass)
    if isinstance(model_pass, SidePass):
        yield from check.on_model(model_pass)


catalog("check", all_checks)
