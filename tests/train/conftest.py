from pathlib import Path

import pytest
from train_kit import write_text


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small text file, and a cache of its own."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return write_text(tmp_path)
