"""Linear attention in whole models: they learn, and a loss compiles as one graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import load
from regard.models import GPT, GPTConfig

SMALL = {"vocabulary": 11, "context": 80, "layers": 2, "heads": 4, "kv_heads": 2, "width": 16, "zero_init": False}


def small_gpt(kind: str) -> tuple[GPT, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = load(GPTConfig, {**SMALL, "attention": kind}).build()
    text = torch.randint(0, 11, (2, 81), generator=torch.Generator().manual_seed(0))
    return model, lambda: F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_a_gpt_learns_with_it(kind: str) -> None:
    model, loss = small_gpt(kind)
    before = loss().item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss() < 0.9 * before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_a_whole_loss_compiles_as_one_graph(kind: str) -> None:
    model, loss = small_gpt(kind)
    plain, compiled = loss(), torch.compile(loss, fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(compiled, plain)
    both = [torch.autograd.grad(value, list(model.parameters())) for value in (plain, compiled)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
