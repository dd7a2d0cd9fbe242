"""A hundredth of `make torture`: each attack runs, and finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ATTACKS = (
    "kills",
    "damages",
    "disk_full",
    "mutations",
    "imports",
    "payloads",
    "archives",
    "requests",
    "power_loss",
    "together",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, mounts and reads /proc as Linux does"),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_finds_nothing(attack: str) -> None:
    command = [sys.executable, "-m", "bench.torture", "--only", attack, "--scale", "0.01"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
