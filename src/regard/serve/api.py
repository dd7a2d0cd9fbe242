"""The endpoints of the HTTP API. Each takes the parameters of a request and returns a dictionary, its JSON or an
array.

They run in worker threads: those of `SessionCache.session` in the single model thread, the others in the reader
threads or in the file thread (see `app.py`).
"""

import base64

import numpy as np

from regard import __version__
from regard.attention.masks.expression import MaskExpressionError, parse, write
from regard.attention.masks.picture import view
from regard.errors import UserError
from regard.generate import Sampling
from regard.look.views.session import LONGEST, MAX_BEAMS, MAX_LENGTH, MAX_POSITION, MAX_TOKENS, Session
from regard.look.views.trace import Trace
from regard.runs.disk import JsonObject
from regard.runs.notes import TAGS, write_notes
from regard.serve.limits import OVERVIEW
from regard.serve.request_params import LARGEST_SEED, RequestParams
from regard.serve.run_library import NotFoundError
from regard.serve.session_cache import SessionCache
from regard.untrusted import read_plain

VIEWS = ["runs", "attention", "sampling", "probes", "masks"]


class Api:
    """The endpoints; a method is the handler of the route with its name."""

    def __init__(self, cache: SessionCache):
        self.cache, self.library = cache, cache.library

    # Runs
    def about(self, params: RequestParams) -> JsonObject:
        return {"version": __version__, "views": VIEWS, "device": str(self.cache.device)}

    def runs(self, params: RequestParams) -> JsonObject:
        comparisons = [{"id": key, "name": path.parent.name} for key, path in self.library.comparisons().items()]
        return {"runs": self.library.runs(), "comparisons": comparisons}

    def comparison(self, params: RequestParams) -> str:
        """The page of a comparison, as `regard compare` wrote it."""
        path = self.library.comparisons().get(params.text("comparison"))
        if path is None:
            raise NotFoundError("there is no such comparison; it may have been removed: reload the page")
        return read_plain(path).decode("utf-8", "replace")

    def run(self, params: RequestParams) -> JsonObject:
        run = params.text("run")
        found = {"capabilities": self.cache.capabilities(run), "damaged": self.cache.damaged(run)}
        return self.library.detail(run) | found

    def metrics(self, params: RequestParams) -> bytes:
        return self.library.metrics(params.text("run"), params.integer("after", -1, default=-1)).encode()

    def difference(self, params: RequestParams) -> JsonObject:
        runs = params.text("runs", 1000).split(",")
        if not 2 <= len(runs) <= 16:
            raise UserError("'runs' must be 2 to 16 run ids, separated by commas")
        return self.library.difference(runs)

    def notes(self, params: RequestParams) -> JsonObject:
        write_notes(self.library.open(params.text("run")), params.texts("tags", TAGS), params.text("note"))
        return {}

    def report(self, params: RequestParams) -> str:
        path = self.library.open(params.text("run")).file("report.html")
        try:
            return read_plain(path).decode("utf-8", "replace")
        except FileNotFoundError:
            raise NotFoundError("this run has no report yet; `regard report RUN` writes it") from None

    def passage(self, params: RequestParams) -> JsonObject:
        """A text of the run's data that the model was not trained on, to begin with."""
        return self.cache.passage(params.text("run"))

    # Traces
    def traces(self, params: RequestParams) -> JsonObject:
        session = self._session(params)
        trace = session.trace(params.text("text"), self._target(params))
        return {"id": self.cache.add_trace(trace, session), **trace.about()}

    def overview(self, params: RequestParams) -> tuple[np.ndarray, int]:
        """Small maps of all heads, and of how many attentions they are complete after ``wait`` seconds."""
        trace, size = self._trace(params), params.integer("size", 8, 128, 64)
        wait = params.number("wait", 0.0, 600.0, 600.0)
        maps = len(trace.attentions) * max(one.heads for one in trace.attentions)
        return trace.overview(min(size, max(8, int((OVERVIEW / maps) ** 0.5))), wait)

    def tile(self, params: RequestParams) -> np.ndarray:
        indices = [params.integer(name, 0) for name in ("attention", "head", "level", "row", "column")]
        return self._trace(params).tile(*indices)

    def row(self, params: RequestParams) -> JsonObject:
        indices = [params.integer(name, 0) for name in ("attention", "head", "query")]
        return self._trace(params).row(*indices)

    def cell(self, params: RequestParams) -> JsonObject:
        indices = [params.integer(name, 0) for name in ("attention", "head", "query", "key")]
        return self._trace(params).cell(*indices)

    def measures(self, params: RequestParams) -> JsonObject:
        return self._trace(params).measures

    def rollout(self, params: RequestParams) -> np.ndarray:
        return self._trace(params).rollout(256)

    # Models
    def step(self, params: RequestParams) -> JsonObject:
        try:
            sampling = Sampling(
                params.number("temperature", 0.0, 100.0, 1.0),
                top_k=params.optional_integer("top_k", 1),
                top_p=params.number("top_p", 0.0, 1.0, 1.0),
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        return self._session(params).next(
            params.text("text"),
            sampling,
            count=params.integer("count", 1, MAX_TOKENS, 1),
            seed=params.integer("seed", 0, LARGEST_SEED, 1),
            position=params.integer("position", 0, MAX_POSITION - 1, 0),
            target=self._target(params),
        )

    def beam(self, params: RequestParams) -> JsonObject:
        beams, length = params.integer("beams", 1, MAX_BEAMS, 3), params.integer("length", 1, MAX_LENGTH, 12)
        return self._session(params).beam(params.text("text"), beams, length)

    def lens(self, params: RequestParams) -> JsonObject:
        return self._session(params).lens(params.text("text"), self._target(params))

    def residual(self, params: RequestParams) -> JsonObject:
        return self._session(params).residual(params.text("text"), self._target(params))

    def ablate(self, params: RequestParams) -> JsonObject:
        return self._session(params).ablate(
            params.text("text"),
            params.heads("heads"),
            count=params.integer("count", 0, MAX_TOKENS, 40),
            seed=params.integer("seed", 0, LARGEST_SEED, 1),
            target=self._target(params),
        )

    def patch(self, params: RequestParams) -> JsonObject:
        layer, positions = params.integer("layer", 0, 10_000), params.optional_integers("positions", LONGEST)
        return self._session(params).patch(params.text("text"), params.text("source_text"), layer, positions)

    # Masks
    def masks(self, params: RequestParams) -> JsonObject:
        """Every pair as a bit, the block layout and the backend; an invalid expression gives its error and position."""
        length, block = params.integer("length", 1, 512, 64), params.integer("block", 1, 512, 8)
        try:
            mask = parse(params.text("expression", 500))
            shown = view(mask, length, block=block, most=length)
        except UserError as error:
            return {"error": str(error), "position": error.position if isinstance(error, MaskExpressionError) else None}
        bits = np.packbits(shown.share.numpy() > 0)  # a cell is one pair
        return {
            "expression": write(mask),
            "length": length,
            "cells": base64.b64encode(bits.tobytes()).decode(),
            "blocks": {"size": block, "rows": shown.layout.tolist()},
            "allowed": shown.allowed,
            "density": shown.allowed / shown.pairs,
            "backend": shown.explanation.chosen,
            "error": None,
        }

    def _session(self, params: RequestParams) -> Session:
        """The model of a run's ``checkpoint``, by default the newest."""
        return self.cache.session(params.text("run", 100), params.optional_integer("checkpoint", 0))

    def _target(self, params: RequestParams) -> str | None:
        """The target text of a translation, if there is one."""
        return params.optional_text("target") or None

    def _trace(self, params: RequestParams) -> Trace:
        return self.cache.trace(params.text("trace", 100))
