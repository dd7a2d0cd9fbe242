"""The start of `regard serve`: a line at once, a fixed port, and how to reach it over SSH."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from serve_kit import REGARD

from regard.commands.serve import tunnel_hint
from regard.errors import UserError

pytest.importorskip("uvicorn")
from regard.serve.server import HOST, PORT, bind


def test_a_line_comes_at_once_then_the_address_and_the_tunnel(tmp_path: Path) -> None:
    variables = {**os.environ, "SSH_CONNECTION": "10.0.0.9 50000 10.0.0.2 2222", "PYTHONUNBUFFERED": "1"}
    command = [*REGARD, "serve", "--runs", str(tmp_path), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"starting the page of the runs in {tmp_path} ...\n"
        address = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=\S+\n", process.stdout.readline())
        assert address
        assert "only this machine" in process.stdout.readline()
        assert f"ssh -N -L {address[1]}:127.0.0.1:{address[1]} -p 2222 " in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_the_first_line_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = f"""
import builtins, sys
def watch(line, **_):
    sys.stdout.write(f"{{line[:8]}} {{'torch' in sys.modules}}")
    sys.exit()
builtins.print = watch
from regard.cli import main
main(["serve", "--runs", {str(tmp_path)!r}])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "starting False"


def test_the_default_port_is_fixed_and_the_next_free_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        free = probe.getsockname()[1]
    monkeypatch.setattr("regard.serve.server.PORT", free)
    with bind(None) as first, bind(None) as second:
        assert first.getsockname()[1] == free
        assert second.getsockname()[1] != free
        with pytest.raises(UserError, match=f"port {free} cannot be used"):  # asked for by name: never another one
            bind(free)
    assert PORT == 8765


def test_no_hint_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert tunnel_hint(8765) is None
    monkeypatch.setenv("SSH_CONNECTION", "::1 1 ::1 22")
    assert "-L 8765:127.0.0.1:8765" in (tunnel_hint(8765) or "")
    assert " -p " not in (tunnel_hint(8765) or "")
