"""A tiny model that was really trained, once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.cli import main
from warm_process import Regard
from warm_process import regard as call

TEXT = "the quick brown fox jumps over the lazy dog, and the dog looks up. who goes there? said the fox\n"


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/tiny`: two layers, a context of 16 characters."""
    folder = tmp_path_factory.mktemp("approximate")
    (folder / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    sizes = "--model.layers 2 --model.heads 2 --model.width 32 --model.context 16 --data.batch 8 --train.steps 40"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert main(["train", "--name", "tiny", "--data.path", "text.txt", *sizes.split()]) == 0
    return folder


@pytest.fixture(scope="session")
def regard(room: Path) -> Regard:
    """`regard(*words)`: a real process in the room."""
    return lambda *words: call(room, *words)
