"""The API: each address, what it asks and who answers.

Models run in one thread, one pass after another; what was traced is read in others, and files in one more.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from regard import __version__
from regard.errors import UserError
from regard.generate import Sampling
from regard.runs.disk import plain
from regard.serve.events import Feed, stream
from regard.serve.guard import Refused, body
from regard.serve.library import Unknown
from regard.serve.limits import STREAMS
from regard.serve.masks import Wrong, masked
from regard.serve.request_params import RequestParams
from regard.serve.session_cache import SessionCache
from regard.serve.workers import Busy, Worker

VIEWS = ["runs", "attend", "step", "probe", "masks"]
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
OVERVIEW = 5_000_000  # bytes of all small maps together
MOST = 2**31 - 1
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """Everything that one server holds."""

    def __init__(self, desk: SessionCache, page: dict[str, bytes], stopping: Callable[[], bool]):
        self.desk, self.library, self._page, self._stopping = desk, desk.library, page, stopping
        self.models, self.reading = Worker(1), Worker(2)
        self._files = Worker(1)
        self._streams = 0

    async def warm(self) -> None:
        """Read the runs before anybody asks: the first time takes longest."""
        with suppress(Exception):  # who asks is told
            await self._files.do(self.library.runs)

    # Runs
    async def about(self, request: Request) -> Response:
        return answer({"version": __version__, "views": VIEWS, "device": str(self.desk.device)})

    async def runs(self, request: Request) -> Response:
        return answer({"runs": await self._files.do(self.library.runs)})

    async def run(self, request: Request) -> Response:
        run = request.path_params["run"]
        told = await self._files.do(lambda: self.library.detail(run) | {"can": self.desk.can(run)})
        return answer(told)

    async def metrics(self, request: Request) -> Response:
        run, after = request.path_params["run"], query(request).whole("after", -1, MOST, -1)
        return answer(await self._files.do(lambda: self.library.metrics(run, after)))

    async def difference(self, request: Request) -> Response:
        names = query(request).text("runs", 1000).split(",")
        if not 2 <= len(names) <= 16:
            raise UserError("'runs' must name 2 to 16 runs, with commas between them")
        return answer(await self._files.do(lambda: self.library.difference(names)))

    async def events(self, request: Request) -> Response:
        asked = {
            **request.query_params,
            "after": request.headers.get("last-event-id", request.query_params.get("after")),
        }
        run, after = request.path_params["run"], RequestParams(asked).whole_or_none("after", -1, MOST)
        if self._streams >= STREAMS:
            raise Busy
        feed = await self._files.do(lambda: Feed(self.library, run, after))
        self._streams += 1

        async def counted():
            try:
                async for one in stream(feed, self._files, self._stopping):
                    yield one
            finally:
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream")

    # Traces
    async def traces(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text, other = asks.text("run", 100), asks.text("text"), asks.text_or_none("other")
        step = asks.whole_or_none("checkpoint", 0, MOST)

        def work() -> dict[str, Any]:
            session = self.desk.session(run, step)
            trace = session.trace(text, other or None)
            return {"trace": self.desk.add(trace, session), **trace.about()}

        return answer(await self.models.do(work))

    async def overview(self, request: Request) -> Response:
        kept, asks = self.desk.trace(request.path_params["trace"]), query(request)
        size, wait = asks.whole("size", 8, 128, 64), asks.real("wait", 0.0, 600.0, 600.0)

        def work() -> tuple[np.ndarray, int]:
            about = kept.trace.about()["attentions"]
            maps = len(about) * max((one["heads"] for one in about), default=1)
            fitting = min(size, max(8, int((OVERVIEW / max(1, maps)) ** 0.5)))
            with kept.lock:
                return kept.trace.overview(fitting, wait)

        found, ready = await self.reading.do(work)
        return binary(found, {"X-Ready": str(ready)})

    async def tile(self, request: Request) -> Response:
        kept, asks = self.desk.trace(request.path_params["trace"]), query(request)
        place = [asks.whole(name, 0, MOST) for name in ("attention", "head", "level", "row", "column")]
        return binary(await self.reading.do(lambda: kept.trace.tile(*place)))

    async def row(self, request: Request) -> Response:
        kept, asks = self.desk.trace(request.path_params["trace"]), query(request)
        place = [asks.whole(name, 0, MOST) for name in ("attention", "head", "query")]
        return answer(await self.reading.do(lambda: kept.trace.row(*place)))

    async def cell(self, request: Request) -> Response:
        kept, asks = self.desk.trace(request.path_params["trace"]), query(request)
        place = [asks.whole(name, 0, MOST) for name in ("attention", "head", "query", "key")]
        return answer(await self.reading.do(lambda: kept.trace.cell(*place)))

    async def measures(self, request: Request) -> Response:
        kept = self.desk.trace(request.path_params["trace"])

        def work() -> dict[str, Any]:
            with kept.lock:
                return kept.trace.measures()

        return answer(await self.models.do(work))

    # Step
    async def step(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text, other = asks.text("run", 100), asks.text("text"), asks.text_or_none("other")
        temperature, top_p = asks.real("temperature", 0.0, 100.0, 1.0), asks.real("top_p", 0.0, 1.0, 1.0)
        try:
            sampling = Sampling(temperature, top_k=asks.whole_or_none("top_k", 1, MOST), top_p=top_p)
        except ValueError as problem:
            raise UserError(str(problem)) from problem
        settings = {"count": asks.whole("count", 1, 256, 1), "seed": asks.whole("seed", 0, 2**63 - 1, 1)}
        settings["position"] = asks.whole("position", 0, MOST, 0)
        session = self.desk.session
        return answer(await self.models.do(lambda: session(run).next(text, sampling, other=other or None, **settings)))

    async def beam(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text = asks.text("run", 100), asks.text("text")
        beams, length = asks.whole("beams", 1, 16, 3), asks.whole("length", 1, 64, 12)
        return answer(await self.models.do(lambda: self.desk.session(run).beam(text, beams, length)))

    # Probe
    async def lens(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text, other = asks.text("run", 100), asks.text("text"), asks.text_or_none("other")
        return answer(await self.models.do(lambda: self.desk.session(run).lens(text, other or None)))

    async def rollout(self, request: Request) -> Response:
        kept = self.desk.trace(RequestParams(await body(request.receive)).text("trace", 100))
        return binary(await self.reading.do(lambda: kept.trace.rollout(256)))

    async def ablate(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text, heads = asks.text("run", 100), asks.text("text"), asks.heads("heads")
        settings: dict[str, Any] = {
            "count": asks.whole("count", 0, 512, 40),
            "seed": asks.whole("seed", 0, 2**63 - 1, 1),
        }
        settings["other"] = asks.text_or_none("other") or None
        return answer(await self.models.do(lambda: self.desk.session(run).ablate(text, heads, **settings)))

    async def patch(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        run, text, source = asks.text("run", 100), asks.text("text"), asks.text("from")
        layer, positions = asks.whole("layer", 0, 10_000), asks.places("positions", 8192)
        return answer(await self.models.do(lambda: self.desk.session(run).patch(text, source, layer, positions)))

    # Masks
    async def masks(self, request: Request) -> Response:
        asks = RequestParams(await body(request.receive))
        expression = asks.text("expression", 500)
        length, block = asks.whole("length", 1, 512, 64), asks.whole("block", 1, 512, 8)
        try:
            return answer(await self.reading.do(lambda: masked(expression, length, block)))
        except Wrong as problem:  # half an expression is what typing looks like, not a fault
            return answer({"error": str(problem), "position": problem.position})

    # The page
    async def page(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._page:
            raise Unknown("there is no such file; open the address that `regard serve` printed")
        kind = KINDS.get(Path(name).suffix, "application/octet-stream")
        return Response(self._page[name], media_type=kind)

    def routes(self) -> list[Route]:
        """Every address there is."""
        run, trace = "/api/runs/{run:str}", "/api/traces/{trace:str}"
        read: dict[str, Handler] = {
            "/": self.page,
            "/{name:str}": self.page,
            "/assets/{name:str}": self.page,
            "/api/about": self.about,
            "/api/runs": self.runs,
            run: self.run,
            f"{run}/metrics": self.metrics,
            f"{run}/events": self.events,
            "/api/difference": self.difference,
            **{
                f"{trace}/{one.__name__}": one for one in (self.overview, self.tile, self.row, self.cell, self.measures)
            },
        }
        asked = (self.traces, self.step, self.beam, self.lens, self.rollout, self.ablate, self.patch, self.masks)
        return [
            *(Route(path, self._told(handler), methods=["GET"]) for path, handler in read.items()),
            *(Route(f"/api/{one.__name__}", self._told(one), methods=["POST"]) for one in asked),
        ]

    def build(self) -> Starlette:
        """The application; the guard goes around it."""

        async def unserved(request: Request, problem: Exception) -> Response:
            status = problem.status_code if isinstance(problem, HTTPException) else 404
            why = "this address does not take that method" if status == 405 else "there is no such address"
            return refusal(status, f"{why}; open the address that `regard serve` printed")

        app = Starlette(routes=self.routes(), exception_handlers={HTTPException: unserved})
        app.router.redirect_slashes = False
        return app

    def _told(self, handler: Handler) -> Handler:
        """A handler whose problems become one sentence, without where anything lies on this machine."""

        async def told(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as problem:
                return refusal(problem.status, str(problem))
            except UserError as problem:
                return refusal(400, self.library.pathless(str(problem)))
            except Unknown as problem:
                return refusal(404, str(problem))
            except Busy:
                return refusal(503, "the server is busy; wait a moment and try again")
            except Exception as problem:
                print(f"regard serve: {handler.__name__}: {type(problem).__name__}: {problem}", file=sys.stderr)
                return refusal(500, f"this is a fault in regard ({type(problem).__name__}); the terminal says more")

        return told


def query(request: Request) -> RequestParams:
    """What stands behind the question mark."""
    return RequestParams(request.query_params)


def answer(told: dict[str, Any]) -> Response:
    """JSON, with null where a number is not finite."""
    return JSONResponse(plain(told, lambda _: None))


def refusal(status: int, why: str, **more: Any) -> Response:
    """An error in one sentence; the connection ends, since what is left of the request is not read."""
    return JSONResponse({"error": why, **more}, status, {"Connection": "close"})


def binary(found: np.ndarray, headers: dict[str, str] | None = None) -> Response:
    """Numbers as bytes, little-endian, their shape in a header."""
    little = np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("<"))
    shape = {"X-Shape": ",".join(str(size) for size in found.shape)}
    return Response(little.tobytes(), media_type="application/octet-stream", headers={**shape, **(headers or {})})
