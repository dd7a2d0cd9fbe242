"""A tiny model that was really trained, once for all tests here, and the command line that writes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from warm_process import Regard
from warm_process import regard as call

TEXT = "to be or not to be, that is the question\n"


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/tiny`: a context of 16 characters, checkpoints of the steps 20 and 40."""
    folder = tmp_path_factory.mktemp("writing")
    (folder / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    sizes = "--model.layers 1 --model.heads 2 --model.width 32 --model.context 16 --data.batch 8"
    times = "--train.steps 40 --train.save_every 20"
    done = call(folder, "train", "--name", "tiny", "--data.path", "text.txt", *sizes.split(), *times.split())
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def regard(room: Path) -> Regard:
    """`regard(*words, input=...)`: a real process in the room."""
    return lambda *words, **options: call(room, *words, **options)
