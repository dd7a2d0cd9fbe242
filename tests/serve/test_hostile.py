"""Hundreds of hostile requests: all are rejected, and the server keeps running."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from serve_kit import PATIENCE, HttpResponse, RunningServer, run_server

from regard.serve.limits import RECEIVE_TIMEOUT

#: Content that must not appear in a response to a hostile request: files next to the runs, configs, run names.
SECRETS = (b"root:x", b"schema =", b"[model]", b"vocabulary", b'"small"', b"Traceback", b"site-packages", b"/tmp/")
CLIMBS = ("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%252f", "%252e%252e%252f", "..\\", "..%5c", "%c0%ae%c0%ae/")
CLIMBS += ("....//", "..;/", ".%00./", "%uff0e%uff0e/", "..//", "%2e./", "..%c0%af", "..%e0%80%af")
PREFIXES = ("/", "/api/runs/", "/api/traces/", "/assets/", "/page.js/")


def path_traversals(server: RunningServer) -> Iterator[bytes]:
    """Paths outside the page, with a valid token."""
    for prefix, climb in itertools.product(PREFIXES, CLIMBS):
        yield server.head("GET", f"{prefix}{climb * 3}secret.txt")
    paths = ("//etc/passwd", "/C:/secret.txt", "/file:///etc/passwd", "/api/runs/small", "/api/runs/small/metrics")
    paths += (
        "/runs/small/config.toml",
        "/small/config.toml",
        "/api/runs/..",
        "/.",
        "/..",
        "/%2fetc%2fpasswd",
        "/page.js%00.css",
    )
    paths += (
        "/api/runs/%73mall",
        "/api//runs",
        "/api/runs/",
        "/API/runs",
        "/index.html/..",
        "/page/page.js",
        "/SOURCES.sha256",
    )
    for path in paths:
        yield server.head("GET", path)


def foreign_requests(server: RunningServer) -> Iterator[bytes]:
    """Foreign Host and Origin headers, with a valid token."""
    port = server.port
    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:1", f"0.0.0.0:{port}", ""]
    hosts += [
        f"127.0.0.1:{port}.evil.example",
        f"127.1:{port}",
        f"2130706433:{port}",
        f"[::]:{port}",
        f"localhost.:{port}",
    ]
    hosts += [f"127.0.0.1:{port}@evil.example", f"evil@127.0.0.1:{port}", f"127.0.0.1:0{port}", f"0x7f.1:{port}"]
    for host in hosts:
        yield server.head("GET", "/api/runs", Host=host)
    yield server.head("GET", f"/?token={server.token}", Host="evil.example", Authorization=None)
    yield server.head("GET", "/api/runs", Host=None)
    origins = [
        "http://evil.example",
        "null",
        "http://127.0.0.1",
        f"https://127.0.0.1:{port}",
        "http://localhost:1",
        "file://",
    ]
    origins += [
        f"http://127.0.0.1:{port}.evil.example",
        f"http://127.0.0.1:{port}, http://evil.example",
        "",
        "chrome-extension://a",
    ]
    for origin in origins:
        yield server.head("GET", "/api/runs", Origin=origin)
        yield (
            server.head("POST", "/api/masks", Origin=origin, Content_Type="application/json", Content_Length="2")
            + b"{}"
        )
    for site in ("cross-site", "same-site"):
        yield server.head("GET", "/api/runs", Sec_Fetch_Site=site)
    yield server.head("GET", "/api/about", Origin="http://evil.example", Connection="Upgrade", Upgrade="websocket")


def unauthorized_requests(server: RunningServer) -> Iterator[bytes]:
    """Every endpoint without a token, and one endpoint with invalid tokens."""
    gets = (
        "/",
        "/page.js",
        "/page.css",
        "/index.html",
        "/api/about",
        "/api/runs",
        "/api/runs/x",
        "/api/runs/x/metrics",
    )
    gets += (
        "/api/runs/x/events",
        "/api/difference?runs=x,y",
        *(f"/api/traces/x/{n}" for n in ("overview", "tile", "row", "cell", "measures")),
    )
    for path in gets:
        yield server.head("GET", path, Authorization=None)
    for path in ("traces", "step", "beam", "lens", "rollout", "ablate", "patch", "masks"):
        head = server.head(
            "POST", f"/api/{path}", Authorization=None, Content_Type="application/json", Content_Length="2"
        )
        yield head + b"{}"
    token, port = server.token, server.port
    invalid = ["", "x", token[:-1], token + "a", token.swapcase(), token[::-1], " ", "null", "%00", "é"]
    for credentials in invalid:
        yield server.head("GET", "/api/runs", Authorization=f"token {credentials}")
        yield server.head("GET", "/api/runs", Authorization=None, Cookie=f"regard_token_{port}={credentials}")
    yield server.head("GET", "/?token=wrong", Authorization=None)
    yield server.head("GET", f"/?token=wrong&token={token}", Authorization=None)
    for scheme in ("Bearer", "Basic", "", "tokens"):
        yield server.head("GET", "/api/runs", Authorization=f"{scheme} {token}")
    yield server.head("GET", "/api/runs", Authorization=None, Cookie=f"token={token}")
    yield server.head("GET", "/api/runs", Authorization=None, X_Token=token)
    yield server.head("GET", f"/{token}", Authorization=None)


def malformed_requests(server: RunningServer) -> Iterator[bytes]:
    """Ambiguous headers, unsupported methods and invalid HTTP."""
    own, token = f"127.0.0.1:{server.port}", server.token
    line = f"GET /api/runs HTTP/1.1\r\nHost: {own}\r\n".encode()
    yield line + b"Host: evil.example\r\n\r\n"
    yield line + f"Cookie: a=b\r\nCookie: regard_token_{server.port}={token}\r\n\r\n".encode()
    yield line + f"Authorization: token x\r\nAuthorization: token {token}\r\n\r\n".encode()
    yield line + f"Authorization : token {token}\r\n\r\n".encode()
    yield line + b"X: " + b"a" * 40_000 + b"\r\n\r\n"
    yield line + b"".join(b"X%d: a\r\n" % i for i in range(4000)) + b"\r\n"
    yield line + b"X: a\x00b\r\n\r\n"
    yield f"GET http://evil.example/api/runs HTTP/1.1\r\nHost: {own}\r\nAuthorization: token {token}\r\n\r\n".encode()
    yield f"GET http://{own}/api/runs HTTP/1.1\r\nHost: {own}\r\nAuthorization: token {token}\r\n\r\n".encode()
    yield f"CONNECT {own} HTTP/1.1\r\nHost: {own}\r\n\r\n".encode()
    yield b"GET /api/runs\r\n\r\n"
    yield b"GET /api/runs HTTP/1.0\r\n\r\n"
    yield f"GET /api/runs HTTP/3.7\r\nHost: {own}\r\n\r\n".encode()
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n"
    yield b"\x00" * 100 + b"\r\n\r\n"
    yield b"GET /\xff\xfe HTTP/1.1\r\nHost: " + own.encode() + b"\r\n\r\n"
    yield server.head("GET", "/api/runs?" + "a" * 9000)
    yield server.head("GET", "/api/runs?" + "&".join("a=1" for _ in range(200)))
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "GETT", "get"):
        yield server.head(method, "/api/runs")
    for path in ("/api/masks", "/api/traces"):
        yield server.head("GET", path)
    yield server.head("POST", "/api/runs", Content_Type="application/json", Content_Length="2") + b"{}"
    yield server.head("POST", "/", Content_Type="application/json", Content_Length="2") + b"{}"


def invalid_bodies(server: RunningServer) -> Iterator[bytes]:
    """Bodies that are too long, ambiguous or invalid, with a valid token."""

    def post(body: bytes, path: str = "/api/masks", **headers: str | None) -> bytes:
        defaults = {"Content_Type": "application/json", "Content_Length": str(len(body))}
        return server.head("POST", path, **{**defaults, **headers}) + body

    valid = b'{"expression": "causal", "length": 8, "block": 4}'
    for length in ("300000", "1000000000000", "99999999999999999999", "-1", "0x10", "2, 3", "1e3"):
        yield post(b"{}", Content_Length=length)
    yield post(b'{"expression": "' + b"a" * 300_000 + b'"}')
    yield post(valid, Transfer_Encoding="chunked")
    chunks = b"".join(b"10000\r\n" + b" " * 0x10000 + b"\r\n" for _ in range(8))
    whole = b"%x\r\n%b\r\n" % (len(valid), valid)
    yield post(whole + chunks + b"0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")
    yield post(valid + b" " * 300_000)
    yield post(b"zz\r\n{}\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")
    yield post(b"2\r\n{}\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="gzip, chunked")
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        yield post(valid, Content_Type=kind)
    invalid = [b"", b"{", b"[]", b"null", b"1", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"NaN"]
    invalid += [b'{"expression": NaN}', b'{"expression": 1}', b'{"expression": "causal", "length": true}']
    invalid += [b'{"expression": "causal", "length": 1e9}', b'{"expression": "causal", "length": -1}']
    invalid += [b'{"expression": "causal", "length": 513}', b"{\"expression\": \"__import__('os').system('id')\"}"]
    invalid += [b'{"expression": "causal", "block": 0}', b'{"expression": "' + b"~" * 9000 + b'causal"}', valid + b"}"]
    invalid += [b'{"expression": "window(' + b"9" * 5000 + b')"}', b'{"expression": "\\ud800"}']
    yield from (post(body) for body in invalid)
    for path in ("traces", "step", "beam", "lens", "ablate", "patch"):
        for run in ("small", "../small", "", 7, None, ["a"]):
            yield post(
                json.dumps({"run": run, "text": "to be", "heads": [], "source_text": "a", "layer": 0}).encode(),
                f"/api/{path}",
            )
    yield post(json.dumps({"trace": "../../x"}).encode(), "/api/rollout")


def is_closed(client: socket.socket) -> bool:
    """Return True if the server closes the connection."""
    client.settimeout(PATIENCE)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:  # reset
        return True
    return True


def is_rejected(response: HttpResponse) -> bool:
    """Return True if the response is an error without secrets that no other site may read.

    An invalid mask expression gives status 200 with an error, since users type incomplete expressions.
    """
    no_secrets = not any(secret in response.body for secret in SECRETS)
    invalid_mask = response.status == 200 and set(json.loads(response.body)) == {"error", "position"}
    return (
        (response.status == 0 or 400 <= response.status < 500 or invalid_mask)
        and no_secrets
        and "access-control-allow-origin" not in response.headers
    )


def test_hostile_requests_are_rejected(runs: Path) -> None:
    with run_server(runs) as server:
        began = time.monotonic()
        slow = [server.connect() for _ in range(60)]
        for number, client in enumerate(slow):
            half = (
                server.head("POST", "/api/masks", Content_Type="application/json", Content_Length="200000")
                + b"{" * number
            )
            client.sendall(half[: 5 + number * 3] if number % 2 else half if number else b"")
        requests = [
            request
            for kind in (path_traversals, foreign_requests, unauthorized_requests, malformed_requests, invalid_bodies)
            for request in kind(server)
        ]
        assert len(requests) >= 200
        accepted = [(request[:300], r) for request in requests if not is_rejected(r := server.raw(request))]
        assert not accepted, accepted
        valid = server.get("/api/about")
        assert valid.status == 200  # while sixty clients hold incomplete requests
        for number, client in enumerate(slow):  # single bytes do not extend the timeout
            try:
                client.sendall(b"a")
            except OSError:  # rejected as invalid, or late
                assert number % 2 or time.monotonic() >= began + RECEIVE_TIMEOUT
        for client in slow:
            assert is_closed(client)
            client.close()
        assert server.process.poll() is None
        assert server.get("/api/runs").status == 200
        assert server.interrupt() == 0


def test_connection_flood(served: RunningServer) -> None:
    clients = [served.connect() for _ in range(300)]
    for client in clients:
        client.close()
    for _ in range(1000):
        if (response := served.get("/api/about")).status == 200:
            break
        time.sleep(0.2)
    assert response.status == 200


def test_ctrl_c_with_open_streams(runs: Path) -> None:
    with run_server(runs) as server:
        run = server.identify("small")
        streams = [server.connect() for _ in range(5)]
        for client in streams:
            client.sendall(server.head("GET", f"/api/runs/{run}/events"))
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        idle, half = server.connect(), server.connect()
        half.sendall(b"GET / HT")
        assert server.interrupt() == 0  # it does not wait for the streams, which have no end
        for client in (*streams, idle, half):
            client.close()
