"""Request validation: middleware that rejects everything that is not a well-formed request of our own page.

The server listens on the loopback address, which every page in the browser can reach. Therefore the Host header must be
ours (this stops DNS rebinding), the Origin header too if present, and every request must carry the token that was
generated at startup: in the URL of the first request, as in Jupyter, and in a cookie afterwards.
"""

import re
from hmac import compare_digest
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.runs.disk import parse_object
from regard.serve.limits import BODY

HOSTS = ("127.0.0.1", "localhost", "[::1]")
#: Only the page's own script and style sheet may load; no other site may frame the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# The server's own paths need no other characters: escaped, doubled and relative paths are rejected.
_PATH = re.compile(rb"(/[A-Za-z0-9_-]+(\.[a-z0-9]+)*)+|/")
# Headers that two parsers could read differently if they were repeated.
_UNIQUE = ("host", "origin", "authorization", "content-type", "content-length", "transfer-encoding", "cookie")


class Guard:
    """ASGI middleware that validates requests and adds security headers to every response."""

    def __init__(self, app: ASGIApp, port: int, token: str):
        self._app, self._token = app, token
        self._cookie = f"regard_token_{port}"  # cookies ignore the port: two servers need two names
        self._hosts = {f"{name}:{port}" for name in HOSTS} | (set(HOSTS) if port == 80 else set())
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            response = self._check(Request(scope))
        except HTTPException as error:
            response = JSONResponse({"error": error.detail}, error.status_code, {"Connection": "close"})
        await (response or self._app)(scope, receive, send_secured)

    def _check(self, request: Request) -> Response | None:
        """Return None for an accepted request, or the response that sets the cookie; raise for any other request."""
        headers, method, path = request.headers, request.method, request.scope["raw_path"]
        for name in _UNIQUE:
            if len(headers.getlist(name)) > 1:
                raise HTTPException(400, f"the header {name} is given twice; send it once")
        if headers.get("host", "").lower() not in self._hosts:
            raise HTTPException(403, "this server accepts only 127.0.0.1 and localhost; open the address it printed")
        if headers.get("origin") not in (None, *self._origins):
            raise HTTPException(403, "requests of other sites are rejected; open the address that the server printed")
        if method not in ("GET", "HEAD", "POST"):
            raise HTTPException(405, f"{method[:16]} is not supported; use GET or POST")
        query = request.query_params.multi_items()
        if not _PATH.fullmatch(path) or len(request.scope["query_string"]) > 4096 or len(query) > 32:
            raise HTTPException(400, "this is not an address of this server; open the address that it printed")
        _check_body_headers(headers, method)
        tokens = request.query_params.getlist("token")
        if path == b"/" and tokens and method != "POST":
            return self._set_cookie(tokens, query, headers)
        if path.startswith(b"/api/") and headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            raise HTTPException(403, "requests of other sites are rejected; open the address that the server printed")
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        tokens += [credentials.strip()] if scheme.lower() == "token" else []
        tokens += [value for name, value in request.cookies.items() if name == self._cookie]
        if not any(map(self._matches, tokens)):
            raise HTTPException(401, "the token is missing or wrong; open the full address that `regard serve` printed")
        return None

    def _set_cookie(self, tokens: list[str], query: list[tuple[str, str]], headers: Headers) -> Response:
        """Move the token from the URL into a cookie that scripts cannot read."""
        if len(tokens) != 1 or not self._matches(tokens[0]):
            raise HTTPException(401, "the token is wrong; open the full address that `regard serve` printed")
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        target = f"/?{rest}" if rest else "/"  # urlencode leaves no character that HTML could misread
        if headers.get("sec-fetch-site") == "cross-site":
            # After a link from another site, the browser would follow a redirect without the strict cookie.
            response: Response = HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={target}">')
        else:
            response = RedirectResponse(target, 303)
        response.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return response

    def _matches(self, token: str) -> bool:
        return compare_digest(token.encode(), self._token.encode())


def _check_body_headers(headers: Headers, method: str) -> None:
    """Reject a request by the headers that describe its body."""
    length = headers.get("content-length")
    if length is not None and "transfer-encoding" in headers:
        raise HTTPException(400, "the request has both Content-Length and Transfer-Encoding; send one of them")
    if length is not None and (not length.isdecimal() or len(length) > 12 or int(length) > BODY):
        raise HTTPException(413, f"a request body may have {BODY // 1024} KB; send a shorter text")
    if method == "POST" and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the request body must be JSON; send Content-Type: application/json")


async def read_json(request: Request) -> dict[str, object]:
    """Parse the request body, at most `BODY` bytes, as a JSON object."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY:
            raise HTTPException(413, f"a request body may have {BODY // 1024} KB; send a shorter text")
    try:
        return parse_object(bytes(data))
    except ValueError:
        raise HTTPException(400, "the request body is not a JSON object; send one") from None
