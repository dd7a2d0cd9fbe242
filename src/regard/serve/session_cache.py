"""Caches of loaded models and of traces, limited in number and in bytes."""

import re
import secrets
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

import torch

from regard.data import DataConfig, PairsConfig, TextConfig, TextData
from regard.data.sources import find_source
from regard.data.translation.pairs import PairData
from regard.errors import UserError
from regard.look import passage
from regard.look.views.session import Session, capabilities
from regard.look.views.trace import Trace
from regard.models import ModelConfig
from regard.models.base import ArrayEncoder, Model
from regard.models.shapes import build_on_meta
from regard.runs import Run
from regard.runs.disk import JsonObject
from regard.serve.limits import MODELS, PASSAGE, TRACE_BYTES, TRACES
from regard.serve.run_library import NotFoundError, RunLibrary, file_version

NO_CAPABILITIES = dict.fromkeys(("attention", "sampling", "beam_search", "probes", "translation"), False)


class SessionCache:
    """LRU caches: sessions by run and step, traces by a random id."""

    def __init__(self, library: RunLibrary, device: torch.device):
        self.library, self.device = library, device
        self._sessions: OrderedDict[tuple[Path, int], Session] = OrderedDict()
        self._traces: OrderedDict[str, tuple[Session, Trace]] = OrderedDict()
        self._damaged: dict[Path, list[str]] = {}  # by run: the damaged checkpoints that were skipped
        self._lock = threading.Lock()

    def session(self, run: str, step: int | None = None) -> Session:
        """Load a checkpoint of a run, by default the newest. Call it from the model worker only."""
        opened = self.library.open(run)
        key = (opened.path, max(opened.steps(), default=-1) if step is None else step)
        if key not in self._sessions:
            while len(self._sessions) >= MODELS:  # evict before loading, so that memory holds at most MODELS models
                evicted = self._sessions.popitem(last=False)[1]
                with self._lock:  # its traces keep the model in memory
                    kept = (item for item in self._traces.items() if item[1][0] is not evicted)
                    self._traces = OrderedDict(kept)
            self._sessions[key] = Session.load(opened, self.device, step)
            self._damaged[opened.path] = opened.damaged
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def damaged(self, run: str) -> list[str]:
        """Return why checkpoints of a run are damaged: those with wrong sizes, and those that were found on loading."""
        opened = self.library.open(run)
        found = [*opened.examine_checkpoints(thorough=False), *self._damaged.get(opened.path, [])]
        return list(dict.fromkeys(found))

    def capabilities(self, run: str) -> JsonObject:
        """Return which views support a run; this reads the config, not the weights."""
        opened = self.library.open(run)
        if not opened.steps():
            return {**NO_CAPABILITIES, "reason": "this run has no checkpoint yet"}
        return _capabilities(opened.path, file_version(opened.path / "config.toml"))

    def passage(self, run: str) -> JsonObject:
        """Return a held-out text of a run's data, or a pair, and the bytes per predicted token of that part."""
        opened = self.library.open(run)
        return _passage(opened.path, file_version(opened.path / "config.toml"))

    def add_trace(self, trace: Trace, session: Session) -> str:
        """Store a trace and return its id; the least recently used traces are evicted."""
        if trace.nbytes > TRACE_BYTES:
            raise UserError(f"this text would need {trace.nbytes / 2**30:.1f} GB of memory; send a shorter one")
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._traces[name] = session, trace
            while len(self._traces) > TRACES or sum(t.nbytes for _, t in self._traces.values()) > TRACE_BYTES:
                self._traces.popitem(last=False)
        return name

    def trace(self, name: str) -> Trace:
        """Return a trace by id."""
        with self._lock:
            if name not in self._traces:
                raise NotFoundError("this trace is no longer cached; send the text again")
            self._traces.move_to_end(name)
            return self._traces[name][1]


@lru_cache(4096)
def _capabilities(path: Path, version: tuple[int, ...]) -> JsonObject:
    try:
        run = Run.open(path)
        config = run.load(ModelConfig, "model")
        model = build_on_meta(config)
        if config.reads != "text" and not config.vocabulary:
            return {**NO_CAPABILITIES, "reason": _no_text(model, config.reads, path.name)}
        data = run.config.get("data")
        return capabilities(model, translates=isinstance(data, dict) and data.get("kind") == "pairs")
    except Exception as error:  # the config uses a component that this version does not have
        return {**NO_CAPABILITIES, "reason": f"the model cannot be built ({type(error).__name__}: {error})"}


def _no_text(model: Model, reads: str, name: str) -> str:
    """Why no view shows a model of images or other arrays, and what does."""
    shows = isinstance(model, ArrayEncoder) and model.mechanisms()
    command = f"`regard look {name}` shows its attention" if shows else f"`regard report {name}` shows how it does"
    return f"this model reads {reads} and no text; {command}"


@lru_cache(256)
def _passage(path: Path, version: tuple[int, ...]) -> JsonObject:
    run = Run.open(path)
    config = run.load(DataConfig, "data")
    source = config.source if isinstance(config, TextConfig | PairsConfig) and config.path is None else None
    if source and find_source(source).cached() is None:  # a look at a run downloads nothing
        fix = f"enter a text, or run: regard data get {source}"
        raise UserError(f"{source} is not on this machine; {fix}")
    data = config.build(run.load(ModelConfig, "model").context)
    checkpoint = run.latest()  # it records the SHA-256 of its data
    if checkpoint is not None and checkpoint.state.get("data") != data.sha256:
        raise UserError(f"{data.name} is not what this run was trained on; enter a text, or put the old file back")
    if isinstance(data, PairData):
        held_out = bool(data.validation.sources)
        pairs = data.validation if held_out else data.train
        return _opening(pairs.sources[0], pairs.targets[0], held_out, None)
    if not isinstance(data, TextData):
        raise UserError(f"{data.name} is no text, so there is no passage to begin with; enter a text")
    shown, targets = passage(data, PASSAGE), data.parts.validation.targets
    scale = data.amount("validation")[1] / targets if targets else None
    text = data.tokenizer.decode(shown.tokens.tolist())
    text = re.sub(r"^\S{0,20}\s+(?=\S)", "", text)  # a part may begin within a word
    return _opening(text, None, shown.held_out, scale)


def _opening(text: str, target: str | None, held_out: bool, bytes_per_token: float | None) -> JsonObject:
    return {"text": text, "target": target, "held_out": held_out, "bytes_per_token": bytes_per_token}
