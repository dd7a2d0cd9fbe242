"""What lies open on the desk: the few models and traces that were asked for last, within bounds of number and bytes."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import UserError
from regard.look.views.session import Session, Trace
from regard.models import ModelConfig
from regard.runs import Run
from regard.serve.library import Library, Unknown
from regard.serve.limits import MODELS, TRACE_BYTES, TRACES

NOTHING = {"attend": False, "step": False, "beam": False, "probe": False, "pair": False}


class Kept(NamedTuple):
    """A trace, and the lock of whoever adds to what it remembers."""

    trace: Trace
    session: Session
    lock: threading.Lock


class SessionCache:
    """Models by run and step, traces by an id that tells nothing. Models are used by one thread at a time."""

    def __init__(self, library: Library, device: torch.device):
        self.library, self.device = library, device
        self._models: OrderedDict[tuple[Path, int], Session] = OrderedDict()
        self._traces: OrderedDict[str, Kept] = OrderedDict()
        self._can: dict[tuple[Path, int, bool], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def session(self, run: str, step: int | None = None) -> Session:
        """A run's checkpoint of a step, or its newest, ready to be asked; only for the lane of models."""
        found = self.library.open(run)
        newest = max(found.steps(), default=-1)
        key = (found.path, newest if step is None else step)
        if key not in self._models:
            while len(self._models) >= MODELS:  # before the next is loaded, so that no more are ever held
                self._forget(self._models.popitem(last=False)[1])
            self._models[key] = Session.load(found, self.device, step)
        self._models.move_to_end(key)
        return self._models[key]

    def can(self, run: str) -> dict[str, Any]:
        """What the page may do with a run, from its config alone: no weight is read."""
        found = self.library.open(run)
        begun = bool(found.steps())
        key = (found.path, (found.path / "config.toml").stat().st_mtime_ns, begun)
        if key not in self._can:
            self._can[key] = _abilities(found) if begun else {**NOTHING, "why": "it has no checkpoint yet"}
        return self._can[key]

    def add(self, trace: Trace, session: Session) -> str:
        """Keep a trace; the oldest go when there are too many, or too much in them."""
        name = secrets.token_urlsafe(12)
        if trace.nbytes > TRACE_BYTES:
            raise UserError(f"this text would need {trace.nbytes / 2**30:.1f} GB of memory; send a shorter one")
        with self._lock:
            self._traces[name] = Kept(trace, session, threading.Lock())
            while len(self._traces) > TRACES or sum(one.trace.nbytes for one in self._traces.values()) > TRACE_BYTES:
                self._traces.popitem(last=False)
        return name

    def trace(self, name: str) -> Kept:
        """A trace by its id."""
        with self._lock:
            if name not in self._traces:
                raise Unknown("this trace is no longer kept; read the text again")
            self._traces.move_to_end(name)
            return self._traces[name]

    def _forget(self, session: Session) -> None:
        """The traces of a model go with it: they would keep it in memory."""
        with self._lock:
            for name in [name for name, kept in self._traces.items() if kept.session is session]:
                del self._traces[name]


def _abilities(run: Run) -> dict[str, Any]:
    from regard.data.translation.pairs import Specials

    try:
        config: Any = run.load(ModelConfig, "model")
        with torch.device("meta"):
            model = config.build()
        data = run.config.get("data")
        pairs = isinstance(data, dict) and data.get("kind") == "pairs"
        tokenizer: Any = None  # what a model can do does not depend on it
        return Session(model, tokenizer, Specials.after(1) if pairs else None).can()
    except Exception as problem:  # a part of another version: the run is shown, and says what it lacks
        return {**NOTHING, "why": f"the model cannot be built ({type(problem).__name__}: {problem})"}
