"""Packages for Node: fetched by the real npm or straight from a registry, verified, and nothing of theirs is run."""

import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from regard.data.origins.npm import NpmPackage, npm_complaint, npm_setting
from regard.data.origins.source import Source
from regard.errors import UserError

CONTENT = b"Call me Ishmael.\n"
NAME = "@made/up"
HOOKS = ("preinstall", "install", "postinstall", "prepare", "prepack", "postpack", "prepublish", "preprepare")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "a-script-ran"


@pytest.fixture
def archive(tmp_path, marker):
    """A package every script of which leaves a mark, laid out as a registry has it."""
    about = {"name": NAME, "version": "1.0.0", "scripts": dict.fromkeys(HOOKS, f"touch {marker}")}
    files = {"package.json": json.dumps(about).encode(), "data/one.txt": CONTENT, "data/two.txt": b"not asked for"}
    path = tmp_path / "registry" / "@made" / "up" / "-" / "up-1.0.0.tgz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


class Registry(http.server.SimpleHTTPRequestHandler):
    """A registry of that one package: its description, and its archive."""

    def do_GET(self):
        if self.path.lower() not in ("/@made%2fup", "/@made/up"):
            return super().do_GET()
        tarball = f"http://{self.headers['host']}/@made/up/-/up-1.0.0.tgz"
        version = {"name": NAME, "version": "1.0.0", "dist": {"tarball": tarball}}
        body = json.dumps({"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def registry(folder: Path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Registry, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    """No npm settings of this machine, no proxy, and npm's own cache in the test's folder."""
    for key in [key for key in os.environ if key.lower().startswith("npm_config_") or key.lower().endswith("_proxy")]:
        monkeypatch.delenv(key)
    (tmp_path / "npmrc").write_text("")
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def without_npm(monkeypatch, tmp_path):
    (tmp_path / "no-programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


def made_up(archive: Path) -> Source:
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    origin = NpmPackage(NAME, "1.0.0", sha256, ("data/one.txt",), lambda members: members["data/one.txt"])
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    return Source("made-up", "A made-up text", "none", "no terms", "made.txt", sha256, len(CONTENT), origin)


@needs_npm
def test_npm_fetches_it_and_no_script_runs(archive, marker, monkeypatch, tmp_path):
    with registry(tmp_path / "registry") as address:
        monkeypatch.setenv("npm_config_registry", address)
        archive_of_npm = made_up(archive).origin._by_npm(_made(tmp_path / "by-npm"))  # pyright: ignore[reportAttributeAccessIssue]
        assert archive_of_npm.read_bytes() == archive.read_bytes()
        path = made_up(archive).fetch()
    assert path.read_bytes() == CONTENT
    assert not marker.exists()
    assert [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()] == ["made.txt"]


def _made(folder):
    folder.mkdir()
    return folder


@needs_npm
def test_the_trap_would_have_sprung(archive, marker, tmp_path):
    """That no mark is left proves something only if npm does run these scripts when it may."""
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    subprocess.run(["npm", "pack"], cwd=tmp_path / "unpacked" / "package", check=True, capture_output=True)
    assert marker.exists()


def test_without_npm_the_registry_is_asked(archive, monkeypatch, tmp_path):
    without_npm(monkeypatch, tmp_path)
    with registry(tmp_path / "registry") as address:
        monkeypatch.setenv("npm_config_registry", address)
        assert made_up(archive).fetch().read_bytes() == CONTENT


def test_without_npm_its_settings_file_is_read(archive, monkeypatch, tmp_path):
    without_npm(monkeypatch, tmp_path)
    assert npm_setting("registry") is None
    with pytest.raises(UserError, match=r"npm is not installed, no registry is named"):
        made_up(archive).fetch()
    with registry(tmp_path / "registry") as address:
        (tmp_path / "npmrc").write_text(f"; a remark\nregistry = {address}\n")
        assert npm_setting("registry") == address
        assert made_up(archive).fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("npm", [pytest.param(True, marks=needs_npm), False])
def test_another_archive_is_not_opened(archive, monkeypatch, tmp_path, npm):
    source = made_up(archive)
    archive.write_bytes(archive.read_bytes() + b"more")
    if not npm:
        without_npm(monkeypatch, tmp_path)
    with registry(tmp_path / "registry") as address:
        monkeypatch.setenv("npm_config_registry", address)
        with pytest.raises(UserError, match=r"SHA-256 .* instead of"):
            source.fetch()


@pytest.mark.parametrize("npm", [pytest.param(True, marks=needs_npm), False])
def test_offline_both_ways_are_named(archive, monkeypatch, tmp_path, npm):
    if not npm:
        without_npm(monkeypatch, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("npm_config_registry", f"http://someone:secret@{address}/")
        with pytest.raises(UserError) as caught:
            made_up(archive).fetch()
    message = str(caught.value)
    assert "the npm package @made/up 1.0.0: npm " in message
    assert f"http://{address}/ (" in message
    assert ("npm pack (" if npm else "npm is not installed") in message
    assert "secret" not in message


def test_a_registry_is_an_address_on_the_web(archive, monkeypatch, tmp_path):
    without_npm(monkeypatch, tmp_path)
    monkeypatch.setenv("npm_config_registry", f"file://{tmp_path / 'registry'}")
    with pytest.raises(UserError, match="no address of a registry"):
        made_up(archive).fetch()


def test_what_npm_complains_of():
    said = "npm error code ETARGET\nnpm error notarget No such version\nnpm error A complete log of this run: /x\n"
    assert npm_complaint(said) == "notarget No such version"
    assert npm_complaint("npm ERR! code E\n") == "it failed without saying why"
