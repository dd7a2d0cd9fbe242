"""The door: what is not plainly a request of our own page is turned away before any of our code looks at it.

The server listens on the loopback address only, but every page in the browser can reach that. So the Host must be our
own (a foreign name that resolves to 127.0.0.1, "DNS rebinding", is not), the Origin too where there is one, and a
token, new for each server, must be shown: in the first address, as Jupyter does, and in a cookie afterwards.
"""

from __future__ import annotations

import json
import re
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.limits import BODY

NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Nothing may load but the page's own script and sheet; nobody may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Our own paths need no more than these; an escaped, doubled or backward path is nobody's mistake.
_PATH = re.compile(rb"(/[A-Za-z0-9_-]+(\.[a-z0-9]+)*)+|/")
_ONCE = (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"transfer-encoding", b"cookie")
_SHOWN = re.compile(r"[A-Za-z0-9_.~=&%+-]*")


class Refused(Exception):
    """Why a request is turned away."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Guard:
    """An ASGI application around ours."""

    def __init__(self, app: ASGIApp, port: int, token: str):
        self._app, self._token = app, token
        self._cookie = f"regard_token_{port}"  # cookies know no ports: two servers must not share a name
        self._hosts = {f"{name}:{port}".encode() for name in NAMES}
        self._hosts |= {name.encode() for name in NAMES} if port == 80 else set()
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message["headers"]}
                more = [(n.lower().encode(), v.encode()) for n, v in HEADERS.items() if n.lower().encode() not in named]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            answer = self._admit(scope)
        except Refused as refusal:
            answer = JSONResponse({"error": str(refusal)}, refusal.status, {"Connection": "close"})
        if answer is not None:
            await answer(scope, receive, sealed)
        else:
            await self._app(scope, receive, sealed)

    def _admit(self, scope: Scope) -> Response | None:
        """None for a request that may pass; else its answer."""
        headers = self._single(scope["headers"])
        if headers.get(b"host", b"").lower() not in self._hosts:
            raise Refused(403, "this server answers to 127.0.0.1 and localhost only; open the address it printed")
        if b"origin" in headers and headers[b"origin"] not in self._origins:
            raise Refused(403, "another page may not ask this server; open the address it printed")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Refused(405, f"{scope['method'][:16]} is not served; use GET or POST")
        path: bytes = scope["raw_path"]
        if not _PATH.fullmatch(path) or len(scope["query_string"]) > 4096:
            raise Refused(400, "no address of this server is written like that; open the address it printed")
        self._measure(headers, scope["method"])
        try:
            asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=32)
        except ValueError:
            raise Refused(400, "this address asks for too much at once; ask for at most 32 things") from None
        shown = [value for name, value in asked if name == "token"]
        if path == b"/" and shown and scope["method"] != "POST":
            return self._welcome(shown, asked, headers)
        if path.startswith(b"/api/") and headers.get(b"sec-fetch-site") not in (None, b"same-origin", b"none"):
            raise Refused(403, "another page may not ask this server; open the address it printed")
        if not any(self._matches(one) for one in (*shown, *self._carried(headers))):
            raise Refused(401, "the token is missing or wrong; open the whole address that `regard serve` printed")
        return None

    def _welcome(self, shown: list[str], asked: list[tuple[str, str]], headers: dict[bytes, bytes]) -> Response:
        """From the first address to the page: the token moves into a cookie that no script can read."""
        if len(shown) != 1 or not self._matches(shown[0]):
            raise Refused(401, "the token in this address is wrong; open the whole address that `regard serve` printed")
        rest = urlencode([(name, value) for name, value in asked if name != "token"])
        target = f"/?{rest}" if rest and _SHOWN.fullmatch(rest) else "/"
        if headers.get(b"sec-fetch-site") == b"cross-site":
            # Followed from another site, a redirect would go without the strict cookie; a page of ours goes with it.
            answer: Response = HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={target}">')
        else:
            answer = RedirectResponse(target, 303)
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return answer

    def _carried(self, headers: dict[bytes, bytes]) -> list[str]:
        """Tokens in the headers."""
        found = []
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "token":
            found.append(given.strip())
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return found
        if self._cookie in cookies:
            found.append(cookies[self._cookie].value)
        return found

    def _matches(self, given: str) -> bool:
        return compare_digest(given.encode(), self._token.encode())

    @staticmethod
    def _single(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """By name; what decides must not be there twice, since two readers could each believe another."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in found and name in _ONCE:
                raise Refused(400, f"the header {name.decode('latin-1')} is given twice; send it once")
            found[name] = value
        return found

    @staticmethod
    def _measure(headers: dict[bytes, bytes], method: str) -> None:
        """Refuse a body by what its headers say of it."""
        length = headers.get(b"content-length")
        if length is not None and b"transfer-encoding" in headers:
            raise Refused(400, "a body has a length or comes in chunks, not both")
        if length is not None and (not length.isdigit() or len(length) > 12 or int(length) > BODY):
            raise Refused(413, f"a request may have {BODY // 1024} KB; send a shorter text")
        if method == "POST" and headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise Refused(415, "a request's body must be JSON; send Content-Type: application/json")


async def body(receive: Receive) -> dict[str, object]:
    """The JSON object that a request carries, never more than `BODY` bytes of it."""
    data = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the request ended early; send it again")
        data += message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) > BODY:
            raise Refused(413, f"a request may have {BODY // 1024} KB; send a shorter text")
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the request's body is not JSON; send a JSON object") from None
    if not isinstance(found, dict):
        raise Refused(400, "the request's body is not a JSON object; send one")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
