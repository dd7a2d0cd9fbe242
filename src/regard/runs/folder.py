"""``Run``: a run folder, from its creation to its last checkpoint."""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from regard.config import load
from regard.config.parts import record, require
from regard.errors import UserError
from regard.runs import checkpoint, manifest
from regard.runs.checkpoint import Changed, Checkpoint, Damaged, changed
from regard.runs.disk import JsonObject, parse_object, plain, replace_by, write_synced, writing
from regard.runs.lines import StepLines
from regard.runs.lock import exclusive
from regard.runs.names import check_name, create_folder, other_runs, taken
from regard.runs.paths import recorded_folder, resolve
from regard.runs.schema import read_config, stamp
from regard.runs.tensors import Tensors
from regard.runs.waiting import notice
from regard.untrusted import read_plain, unreadable

C = TypeVar("C")
CONFIG, ENVIRONMENT, TOKENIZER, CHAT = "config.toml", "environment.json", "tokenizer.json", "chat.json"


class Run:
    """A run folder. Use ``Run.create`` or ``Run.open``; hold ``lock()`` while writing.

    >>> run = Run.create(Path("runs"), None, "[train]\\nsteps = 10\\n", environment())   # doctest: +SKIP
    >>> with run.lock():                                                                 # doctest: +SKIP
    ...     run.log({"step": 1, "loss": 4.2})
    ...     run.save(1, model.state_dict(), {}, {"position": 64})
    """

    def __init__(self, path: Path, config: JsonObject):
        self.path = path
        #: The resolved config as plain values, without the schema key; for `regard.config.load`.
        self.config = config
        #: Why ``latest()`` skipped newer checkpoints, one message each.
        self.damaged: list[str] = []
        self._metrics = StepLines(path / "metrics.jsonl")
        self._samples = StepLines(path / "samples.jsonl")
        self._findings = StepLines(path / "findings.jsonl")

    @classmethod
    def create(
        cls, root: Path, name: str | None, config: str, environment: Mapping[str, object], prefix: str = "run"
    ) -> "Run":
        """Create the folder ``root/name`` with its config (TOML text) and environment.

        The default name is ``<prefix>-1``, ``<prefix>-2``, ... The folder is created atomically, so a killed process
        leaves no partial run, and two processes never get the same one.
        """
        root = Path(root)
        check_name(prefix if name is None else name)
        described = {**environment, **({"parts": parts} if (parts := record()) else {}), **recorded_folder(root)}
        text = json.dumps(plain(described, str, "environment"), indent=1)

        def write(folder: Path) -> None:
            stamped = stamp(config)
            write_synced(folder / CONFIG, stamped)
            write_synced(folder / manifest.FILE, manifest.render({CONFIG: [manifest.sha256(stamped)]}))
            write_synced(folder / ENVIRONMENT, text.encode())
            (folder / "checkpoints").mkdir()

        return cls.open(create_folder(root, name, prefix, write))

    @staticmethod
    def check(root: Path, name: str | None) -> None:
        """Raise the error with which ``create`` would fail for this name and folder."""
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is a file, not a folder; choose another folder for runs with --runs FOLDER")
        if name is not None:
            check_name(name)
            if os.path.lexists(root / name):
                raise taken(root / name)
        there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"nothing can be written in {there}; choose another folder for runs with --runs FOLDER")

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open an existing run for reading; writers also take its ``lock()``."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not the folder of a run; give that folder, or the run's name")
        if not path.is_dir():
            raise UserError(f"there is no run {path}{other_runs(path)}")
        for folder in (path / "checkpoints", path / "tensorboard"):
            if folder.is_symlink():
                raise UserError(f"{folder} is a link, not a folder; put the folder itself there")
        try:
            written_by = parse_object(read_plain(path / ENVIRONMENT)).get("regard")
        except (OSError, ValueError):
            written_by = None  # only used in a message
        return cls(path, read_config(path / CONFIG, written_by if isinstance(written_by, str) else None))

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def environment(self) -> JsonObject:
        """The environment that the run was created in."""
        try:
            return parse_object(read_plain(self.path / ENVIRONMENT))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / ENVIRONMENT} is damaged ({error}); restore it from a copy") from error

    def load(self, cls: type[C], section: str | None = None) -> C:
        """The run's config, or one table of it, as a `cls`; refused if it uses parts from a file that is not loaded.

        Relative paths of data are found from any folder (see `paths.resolve`).
        """
        environment: JsonObject = {}
        with suppress(UserError):  # a damaged environment.json
            environment = self.environment
        require(self.config, environment.get("parts", []), str(self.path))
        config = resolve(self.config, self.path, environment)
        return load(cls, config if section is None else self.table(section, config), self.path / CONFIG)

    def table(self, name: str, config: JsonObject | None = None) -> JsonObject:
        """One table of the config."""
        table = (self.config if config is None else config).get(name)
        if not isinstance(table, dict):
            raise UserError(f"{self.path / CONFIG} has no [{name}]; restore it from a copy")
        return table

    @property
    def imported(self) -> bool:
        """Whether the model was trained elsewhere, so that the run has neither its training nor its data."""
        data = self.config.get("data")
        return isinstance(data, dict) and data.get("kind") == "imported"

    @property
    def planned_steps(self) -> int | None:
        """The steps of the training; None for a time budget that is not yet converted, 0 for an imported model."""
        train = self.config.get("train")
        if self.imported:
            return 0
        steps = train.get("steps") if isinstance(train, dict) else None
        return steps if isinstance(steps, int) else None

    def replace_config(self, config: str) -> None:
        """Replace the config atomically, for values that the start determines, such as steps from a time budget."""
        stamped = stamp(config)
        self.add(CONFIG, lambda temporary: write_synced(temporary, stamped))
        self.config = read_config(self.path / CONFIG, None)

    def discard(self) -> None:
        """Remove a run without a checkpoint or a logged step."""
        if not self.steps() and not self.metrics():
            shutil.rmtree(self.path)
            with suppress(OSError):  # the folder of runs too, if it was made for this one
                self.path.parent.rmdir()

    def file(self, name: str) -> Path:
        """The path of a file of the run, such as `tokenizer.json`."""
        return self.path / name

    def add(self, name: str, write: Callable[[Path], None]) -> None:
        """Add or replace a file atomically, and list it in the manifest.

        ``write`` writes a temporary file, which is then renamed.
        """

        def write_listed(temporary: Path) -> None:
            write(temporary)
            manifest.allow(self.path, name, manifest.sha256(read_plain(temporary)))

        replace_by(self.path / name, write_listed)
        manifest.settle(self.path, name)

    def read(self, name: str) -> bytes:
        """The content of a file of the run; a ``UserError`` if it is not what the run wrote."""
        manifest.notice_if_missing(self.path)
        try:
            data = read_plain(self.path / name)
        except OSError as error:
            raise unreadable(self.path / name, error) from error
        try:
            manifest.check(self.path, name, data)
        except manifest.FileReplaced:
            return self.read(name)
        return data

    @contextmanager
    def lock(self) -> Iterator["Run"]:
        """Become the only writer of this run (a second gets a ``UserError``), and remove temporary files."""
        with exclusive(self.path / ".lock", f"run {self.name}"):
            checkpoint.sweep(self.path)
            checkpoint.sweep(self._checkpoints)
            yield self

    def log(self, record: Mapping[str, object]) -> None:
        """Append one record, with an integer "step", to metrics.jsonl; NaN and infinities become strings."""
        self._metrics.append(record)

    def metrics(self) -> list[JsonObject]:
        """The records logged so far; an incomplete last line is skipped."""
        return self._metrics.read()

    def sample(self, record: Mapping[str, object]) -> None:
        """Append one record, with an integer "step", to samples.jsonl."""
        self._samples.append(record)

    def samples(self) -> list[JsonObject]:
        """The samples written so far."""
        return self._samples.read()

    def add_finding(self, record: Mapping[str, object]) -> None:
        """Append a finding of the doctor, with an integer "step", a "kind" and a "where", to findings.jsonl."""
        self._findings.append(record)

    def findings(self) -> list[JsonObject]:
        """The newest finding of every kind and place, in the order of their first records."""
        records = self._findings.read()
        return list({(str(record.get("kind")), str(record.get("where"))): record for record in records}.values())

    def rewind(self, step: int) -> None:
        """Remove the metrics, samples and findings after ``step``, each file atomically."""
        for lines in (self._metrics, self._samples, self._findings):
            lines.cut(step)

    def save(
        self,
        step: int,
        model: Tensors,
        optimizer: Tensors,
        state: Mapping[str, object],
        keep: int = 2,
        pinned: Collection[int] = (),
    ) -> Path:
        """Write the checkpoint of ``step`` atomically; then keep the ``keep`` newest and the ``pinned`` ones.

        ``state`` is JSON: finite numbers, strings, lists and dicts (tuples become lists). Tied tensors stay tied.
        """
        with self.saving(step, keep, pinned) as folder:
            return checkpoint.write(folder, step, model, optimizer, state)

    @contextmanager
    def saving(self, step: int, keep: int = 2, pinned: Collection[int] = ()) -> Iterator[Path]:
        """A context in which the checkpoint of ``step`` is written into the folder of all; as ``save`` otherwise."""
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, got keep={keep}")
        with writing(f"the checkpoint of step {step} in {self.path}"):
            # The records up to here must be on disk before the checkpoint is.
            self._metrics.sync()
            self._samples.sync()
            yield self._checkpoints
            checkpoint.prune(self._checkpoints, step, keep, pinned)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first, not verified."""
        return sorted({step for step, _, _ in checkpoint.folders(self._checkpoints)})

    def latest(self, changed: Changed = changed) -> Checkpoint | None:
        """The newest undamaged checkpoint, verified; ``damaged`` lists the skipped ones, also on standard error.

        ``changed``: see `checkpoint.verify`.
        """
        self.damaged = []
        found = self._first_undamaged(checkpoint.folders(self._checkpoints), changed)
        if found is not None:
            for damage in self.damaged:
                notice(f"{self.path}: {damage}; taking step {found.step} instead")
        return found

    def examine_checkpoints(self, thorough: bool = True) -> list[str]:
        """Why checkpoints are damaged, newest first; if not ``thorough``, only sizes are compared."""
        entries = checkpoint.folders(self._checkpoints)
        found = ((path.name, checkpoint.damage(path, step, thorough)) for step, _, path in entries)
        return [f"checkpoint {name} is damaged: {damage}" for name, damage in found if damage]

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of one step, verified; a ``UserError`` if it is missing or damaged."""
        self.damaged = []
        found = self._first_undamaged([entry for entry in checkpoint.folders(self._checkpoints) if entry[0] == step])
        if found is None:
            why = self.damaged[0] if self.damaged else f"{self.path} has no checkpoint of step {step}"
            there = ", ".join(str(other) for other in self.steps()) or "none"
            raise UserError(f"{why}; choose another step (there are: {there})")
        return found

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _first_undamaged(self, entries: list[tuple[int, int, Path]], changed: Changed = changed) -> Checkpoint | None:
        for step, _, path in entries:
            try:
                return checkpoint.verify(path, step, changed)
            except Damaged as damage:
                self.damaged.append(f"checkpoint {path.name} is damaged: {damage}")
        return None
