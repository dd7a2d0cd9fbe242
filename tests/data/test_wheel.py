"""Files out of a wheel: found as pip finds it, verified, read from the zip, and nothing of it ever run."""

import hashlib
import os
import zipfile

import pytest

from regard.data.origins.pypi import Sdist, Wheel
from regard.data.origins.source import Source, Unavailable, read_members

MEMBERS = ("made_up/texts/*.txt",)


def assemble(members):
    return b"|".join(members.values())


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """One for a Python and a machine that nobody has, beside a source package of the same version."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    (folder / "made_up-1.0.tar.gz").write_bytes(b"not this one")
    path = folder / "made_up-1.0-cp399-none-plan9.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("made_up/texts/")
        archive.writestr("made_up/__init__.py", "raise SystemExit('it ran')")
        archive.writestr("made_up/texts/two.txt", "two")
        archive.writestr("made_up/texts/one.txt", "one")
        archive.writestr("../escaped.txt", "out of the folder")
        archive.writestr("made_up-1.0.dist-info/METADATA", "Name: made-up\nVersion: 1.0\nRequires-Python: >=3.99\n")
    return path


def source(wheel, sha256=None):
    content = b"one|two"
    origin = Wheel("made-up", "1.0", sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(), MEMBERS, assemble)
    sha256 = hashlib.sha256(content).hexdigest()
    return Source("made-up", "A made-up text", "none", "no terms", "made.txt", sha256, len(content), origin)


def test_fetched_verified_and_never_run(wheel, tmp_path):
    path = source(wheel).fetch()
    assert path.read_bytes() == b"one|two"  # in sorted order
    assert not list(tmp_path.rglob("escaped.txt"))
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.py")) == []


def test_another_wheel_is_refused(wheel):
    with pytest.raises(Exception, match="instead of 0000"):
        source(wheel, "0000").fetch()


def test_handed_over(wheel, monkeypatch, tmp_path):
    brought = tmp_path / "brought.whl"
    wheel.rename(brought)
    monkeypatch.delenv("PIP_FIND_LINKS")
    path = source(brought).fetch(given=brought)
    assert path.read_bytes() == b"one|two"


def test_a_source_package_is_not_taken_for_it(wheel, tmp_path):
    digest = hashlib.sha256(b"not this one").hexdigest()
    assert Sdist("made-up", "1.0", digest, MEMBERS, assemble).download(tmp_path / "d").name == "made_up-1.0.tar.gz"
    wheel.unlink()
    with pytest.raises(Unavailable, match="wheels"):
        Wheel("made-up", "1.0", digest, MEMBERS, assemble).download(tmp_path / "e")


def test_a_damaged_zip_says_so(wheel, tmp_path):
    whole = bytearray(wheel.read_bytes())
    place = whole.index(b"made_up/texts/two.txt") + 21
    whole[place : place + 4] = b"\xff\xff\xff\xff"
    broken = tmp_path / "broken.whl"
    broken.write_bytes(bytes(whole))
    with pytest.raises(Unavailable, match=r"broken\.whl cannot be read"):
        read_members(broken, MEMBERS)
    with pytest.raises(Unavailable, match=r"lacks made_up/other"):
        read_members(wheel, ("made_up/other",))
