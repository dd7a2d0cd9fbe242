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

from regard.attention import Causal, Range, Softmax
from regard.data import Bytes
from regard.look.capture import observe as tracing
from regard.look.capture.observe import Attention
from regard.look.views.session import Session
from regard.models import GPTConfig

SIZES = {"vocabulary": 256, "context": 64, "layers": 3, "heads": 4, "kv_heads": 2, "width": 32, "zero_init": False}


def spilled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attention:
    mechanism = Softmax()
    return Attention("one", mechanism, q, k, mechanism.plan(Causal(), Range(5), like=q), v).spill()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_spill_gives_back_what_was_put(dtype):
    x = torch.randn(3, 5, 7).mul(9).to(dtype)
    tensors = x, x.transpose(0, 2), torch.arange(6).to(dtype)  # the second is not in order
    attention = spilled(*tensors)
    for _ in range(2):
        loaded = attention.load()
        for found, wanted in zip(loaded.tensors.values(), tensors, strict=True):
            assert torch.equal(found, wanted)


def test_a_spill_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path)) if sys.platform == "linux" else 0

    files = len(os.listdir("/dev/fd"))
    attention = spilled(torch.ones(4), torch.ones(4), torch.ones(2))
    assert attention.nbytes == 40
    assert not list(tmp_path.iterdir())
    loaded = attention.load()
    assert mappings() == (sys.platform == "linux")
    del loaded
    assert mappings() == 0
    assert len(os.listdir("/dev/fd")) == files + 1
    del attention
    assert len(os.listdir("/dev/fd")) == files


def test_a_trace_that_was_put_aside_answers_alike(monkeypatch):
    torch.manual_seed(0)
    session, text = Session(GPTConfig(**SIZES).build(), Bytes()), "to be or not to be " * 3
    held = session.trace(text)
    monkeypatch.setattr(tracing, "LONG", 16)
    aside = session.trace(text)
    assert all(one.spilled is None for one in held.attentions)
    assert all(one.spilled is not None for one in aside.attentions)
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
