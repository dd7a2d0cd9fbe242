"""Long texts: what is put aside is the same as what is held, and 8,192 tokens fit into little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data import Bytes
from regard.look.capture import trace as tracing
from regard.look.views.session import Session
from regard.models import GPTConfig

SIZES = {"vocabulary": 256, "context": 64, "layers": 3, "heads": 4, "kv_heads": 2, "width": 32, "zero_init": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_mapped_copy_is_equal(dtype):
    x = torch.randn(3, 5, 7).mul(9).to(dtype)
    for one in (x, x.transpose(0, 2), torch.arange(6).to(dtype)):  # the second is not in order
        assert torch.equal(tracing._mapped_copy(one), one)


def test_a_mapped_copy_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path)) if sys.platform == "linux" else 0

    before = len(os.listdir("/dev/fd"))
    x = tracing._mapped_copy(torch.ones(4))
    assert x.nbytes == 16
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/dev/fd")) == before
    assert mappings() == (sys.platform == "linux")
    del x
    assert mappings() == 0


def test_a_trace_that_was_put_aside_answers_alike(monkeypatch):
    torch.manual_seed(0)
    session, text = Session(GPTConfig(**SIZES).build(), Bytes()), "to be or not to be " * 3
    held = session.trace(text)
    copies, mapped_copy = [], tracing._mapped_copy
    monkeypatch.setattr(tracing, "LONG", 16)
    monkeypatch.setattr(tracing, "_mapped_copy", lambda x: copies.append(x.shape) or mapped_copy(x))
    aside = session.trace(text)
    assert len(copies) == 3 * len(aside.attentions)
    assert aside.about() == held.about()
    assert aside.nbytes == held.nbytes
    assert np.array_equal(aside.overview(16)[0], held.overview(16)[0])
    assert np.array_equal(aside.rollout(), held.rollout())
    assert aside.measures == held.measures
    for attention in (0, 2, 1, 2):
        assert aside.cell(attention, 3, 20, 7) == held.cell(attention, 3, 20, 7)
        assert np.array_equal(aside.tile(attention, 1, 0, 0, 0), held.tile(attention, 1, 0, 0, 0))


LOOK = """
import json, resource, sys, torch
from regard.data import Bytes
from regard.look.views.session import Session
from regard.models import GPTConfig

torch.set_num_threads(1)
torch.manual_seed(0)
model = GPTConfig(vocabulary=256, context=256, layers=4, heads=8, width=256, zero_init=False).build()
trace = Session(model, Bytes()).trace("to be or not to be " * 431 + "abc")
picture, ready = trace.overview()
trace.tile(3, 7, 5, 0, 0), trace.cell(3, 7, 8191, 0), trace.row(0, 0, 8191)
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"tokens": len(trace.tokens), "ready": ready, "sent": picture.nbytes, "bytes": most}))
"""


@pytest.mark.slow
def test_8192_tokens_fit():
    """One dense map of 8,192 tokens has 256 MB, and there are 32: they would be 8 GB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, env=environment, check=True)
    told = json.loads(done.stdout)
    assert told["tokens"] == 8192
    assert told["ready"] == 4
    assert told["sent"] <= 5e6
    assert told["bytes"] <= 1.5e9
