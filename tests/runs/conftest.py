from pathlib import Path

import pytest

from regard.runs import Run

CONFIG = '# a comment\nseed = 1\n\n[model]\nkind = "gpt"\nwidth = 64\n'


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs", "first", CONFIG, {"regard": "0.1.0"})
