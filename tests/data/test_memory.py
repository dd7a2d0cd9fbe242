"""Memory does not grow with the text: it is read in pieces, and windows are read one by one."""

import subprocess
import sys

import pytest

LINE = "To be, or not to be: that is the question — whether 'tis nobler\n"

PROGRAM = """
import resource, sys
from pathlib import Path
import torch
from regard.config import load
from regard.data import TextConfig, TokenizerConfig

def peak():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used // (1 << 20 if sys.platform == "darwin" else 1 << 10)

path, cache, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
tokenizer = load(TokenizerConfig, {"kind": kind})
before = peak()
data = TextConfig(path=path, tokenizer=tokenizer, test=0.001).build(256, cache)
for position in range(100):
    data.batch(position, seed=1, size=12)
for batch in data.test_batches(64):
    pass
print(len(data), peak() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """600 MB in two files, which read as one text."""
    folder = tmp_path_factory.mktemp("memory")
    many = (LINE * 20_000).encode()
    (folder / "text").mkdir()
    for name in ("one.txt", "two.txt"):
        with open(folder / "text" / name, "wb") as file:
            while file.tell() < 300_000_000:
                file.write(many)
    yield folder
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["characters", "bytes"])
@pytest.mark.parametrize("path", ["text", "text/one.txt"])
def test_preparing_and_drawing_takes_little_memory(large, kind, path):
    command = [sys.executable, "-c", PROGRAM, large / path, large / "cache", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tokens, grown = map(int, done.stdout.split())
    assert tokens > (550_000_000 if path == "text" else 280_000_000)
    assert grown < 300  # MiB; the tokens alone are more, and the decoded text would be over a thousand
