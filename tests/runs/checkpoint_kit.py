"""Small checkpoints, and whether one comes back as it was saved."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.runs import Checkpoint, Run

FILES = ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def save(run: Run, step: int, **options: Any) -> Path:
    at = float(step)
    return run.save(step, {"w": torch.full((3, 4), at)}, {"m": torch.full((5,), -at)}, {"position": step}, **options)


def same(a: Tensor, b: Tensor) -> bool:
    # the bits, not the values: NaN must come back as it was
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().numpy().tobytes() == b.numpy().tobytes()


def loads_as(found: Checkpoint | None, step: int) -> bool:
    assert found is not None
    return (
        found.step == step
        and same(found.model()["w"], torch.full((3, 4), float(step)))
        and same(found.optimizer()["m"], torch.full((5,), -float(step)))
        and found.state == {"position": step}
    )
