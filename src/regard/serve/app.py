"""The ASGI application: routes, workers, error responses and the files of the page."""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from regard.errors import UserError
from regard.runs.disk import JsonObject, plain
from regard.serve.api import Api
from regard.serve.events import SHUTDOWN_INTERVAL, RunFeed, stream_events
from regard.serve.guard import read_json
from regard.serve.html_file import MEDIA_TYPES, load_assets
from regard.serve.limits import QUEUED, STREAMS
from regard.serve.request_params import RequestParams
from regard.serve.run_library import NotFoundError
from regard.serve.session_cache import SessionCache

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
Result = JsonObject | bytes | str | np.ndarray | tuple[np.ndarray, int]
Endpoint = Callable[[RequestParams], Result]
#: A report is one file; as a file from a run folder it may not reach the server, whatever it contains.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "sandbox allow-scripts; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Worker:
    """A pool of ``threads`` threads. With one thread, calls never overlap.

    The process ends without waiting for the threads (`os._exit` in `regard serve`).
    """

    def __init__(self, threads: int):
        self._pool = ThreadPoolExecutor(threads, initializer=_lower_priority)
        self._limit, self._pending = threads + QUEUED, 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in the pool and return its result; raise `queue.Full` if too many calls are pending."""
        if self._pending >= self._limit:
            raise queue.Full
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        finally:
            self._pending -= 1


def _lower_priority() -> None:
    """Let a training on the same cores go first; the thread that accepts requests keeps its priority."""
    if sys.platform == "linux":  # elsewhere a priority belongs to a process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + 5)


class EventStream(StreamingResponse):
    """Server-sent events; ``release`` is called at the end, also if the client left before the first event."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], release: Callable[[], None]):
        super().__init__(events)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


class PageServer:
    """The application with its workers. ``on_start`` is called at startup; ``stopping`` ends the event streams."""

    def __init__(self, cache: SessionCache, on_start: Callable[[], None], stopping: Callable[[], bool]):
        self._api, self._assets, self._on_start, self._stopping = Api(cache), load_assets(), on_start, stopping
        # One thread runs models, two read traces, one reads files.
        self._models, self._readers, self._files = Worker(1), Worker(2), Worker(1)
        self._streams = 0
        self._feeds: dict[str, RunFeed] = {}  # by run; a handful of values each, so they are kept

    def build(self) -> Starlette:
        """Return the Starlette application."""
        api, models, readers, files = self._api, self._models, self._readers, self._files
        run, trace = "/api/runs/{run}", "/api/traces/{trace}"
        get: dict[str, Handler] = {
            "/": self._asset,
            "/{name}": self._asset,
            "/api/about": _handler(api.about, files),
            "/api/runs": _handler(api.runs, files),
            run: _handler(api.run, files),
            f"{run}/metrics": _handler(api.metrics, files),
            f"{run}/passage": _handler(api.passage, models),
            f"{run}/report": _handler(api.report, files),
            f"{run}/events": self._events,
            "/api/comparisons/{comparison}": _handler(api.comparison, files),
            "/api/difference": _handler(api.difference, files),
            **{f"{trace}/{e.__name__}": _handler(e, readers) for e in (api.overview, api.tile, api.row, api.cell)},
            f"{trace}/measures": _handler(api.measures, models),
        }
        post: dict[Worker, tuple[Endpoint, ...]] = {
            models: (api.traces, api.step, api.beam, api.lens, api.residual, api.ablate, api.patch),
            readers: (api.rollout, api.masks),
        }
        routes = [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
        routes.append(Route(f"{run}/notes", _handler(api.notes, files), methods=["POST"]))
        for worker, endpoints in post.items():
            routes += [Route(f"/api/{e.__name__}", _handler(e, worker), methods=["POST"]) for e in endpoints]
        errors = (HTTPException, UserError, NotFoundError, queue.Full, ClientDisconnect, Exception)
        handlers = dict.fromkeys(errors, self._error)
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)  # type: ignore[arg-type]
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._on_start()
        # The first listing of the runs is the slowest: start it early. Errors are reported on request.
        listing = asyncio.create_task(self._files.run(lambda: self._api.library.runs()))
        listing.add_done_callback(lambda task: task.cancelled() or task.exception())
        yield

    async def _asset(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._assets:
            raise NotFoundError("there is no such file; open the address that `regard serve` printed")
        return Response(self._assets[name], media_type=MEDIA_TYPES[name])

    async def _events(self, request: Request) -> Response:
        after = request.headers.get("last-event-id", request.query_params.get("after"))
        position = RequestParams({"after": after}).optional_integer("after", -1)
        if self._streams >= STREAMS:
            raise queue.Full
        self._streams += 1  # before anything is awaited: requests at the same time are counted too
        run = request.path_params["run"]
        try:
            if run not in self._feeds:
                feed = await self._files.run(lambda: RunFeed(self._api.library, run))
                self._feeds.setdefault(run, feed)  # another stream may have made it meanwhile
        except BaseException:
            self._release_stream()
            raise
        events = stream_events(self._feeds[run], position, self._read_feed, self._stopping)
        return EventStream(events, self._release_stream)

    async def _read_feed(self, function: Callable[[], list[str]]) -> list[str]:
        """Call a method of a feed; a busy server sends the events with the next poll."""
        while True:
            try:
                return await self._files.run(function)
            except queue.Full:
                await asyncio.sleep(SHUTDOWN_INTERVAL)

    def _release_stream(self) -> None:
        self._streams -= 1

    async def _error(self, request: Request, error: Exception) -> Response:
        """Return an error as one sentence without local paths; close the connection, since the body may be unread."""
        match error:
            case HTTPException(status_code=404 | 405 as status):
                reason = "this address does not support that method" if status == 405 else "there is no such address"
                message = f"{reason}; open the address that `regard serve` printed"
            case HTTPException(status_code=status, detail=message):
                pass
            case UserError():
                status, message = 400, self._api.library.remove_paths(str(error))
            case NotFoundError():
                status, message = 404, str(error)
            case queue.Full():
                status, message = 503, "the server is busy; wait a moment and try again"
            case ClientDisconnect():
                status, message = 400, "the request is incomplete; send it again"
            case _:
                print(f"regard serve: {request.url.path}: {type(error).__name__}: {error}", file=sys.stderr)
                status, message = 500, f"internal error ({type(error).__name__}); see the terminal of `regard serve`"
        # The page asks for status 200 where a person can fix the error: a browser logs every 400 in its console.
        fixable = isinstance(error, UserError) and request.headers.get("x-error-status") == "200"
        headers = {"Connection": "close", "X-Error": str(status)}
        return JSONResponse({"error": message}, 200 if fixable else status, headers)


def _handler(endpoint: Endpoint, worker: Worker) -> Handler:
    """Return a handler that calls ``endpoint`` in ``worker`` and encodes its result."""

    async def handle(request: Request) -> Response:
        body = await read_json(request) if request.method == "POST" else request.query_params
        params = RequestParams({**body, **request.path_params})
        return await worker.run(lambda: _response(endpoint(params)))

    return handle


def _response(result: Result) -> Response:
    """Encode what an endpoint returns."""
    match result:
        case str():  # a report, which carries a policy for its own inline styles and scripts
            return HTMLResponse(result, headers={"Content-Security-Policy": REPORT_POLICY})
        case dict():
            return JSONResponse(plain(result, lambda _: None))  # NaN and infinity become null
        case bytes():
            return Response(result, media_type="application/json")
    array, ready = result if isinstance(result, tuple) else (result, None)
    headers = {"X-Shape": ",".join(map(str, array.shape))} | ({} if ready is None else {"X-Ready": str(ready)})
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return Response(data, media_type="application/octet-stream", headers=headers)
