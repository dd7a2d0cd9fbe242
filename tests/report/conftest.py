from pathlib import Path

import pytest

from regard.report import probes


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small text file that would do harm on a careless page, and a cache of its own."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probes, "SAMPLE", 20)
    path = tmp_path / "text.txt"
    path.write_text("<script>alert('&lt;')</script> \"quoted\"\n" * 40, encoding="utf-8")
    return path
