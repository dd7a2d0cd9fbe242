"""Dropout on a CPU: as many zeros as asked for, the mean kept, the draws from PyTorch's one generator."""

from __future__ import annotations

import pytest
import torch

from regard.nn.fused.ops import FastDropout


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_share_of_zeros_and_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 400_000
    out = FastDropout(p)(torch.ones(4, 1000, 100, dtype=dtype)).double()
    spread = 5 * (p * (1 - p) / n) ** 0.5
    assert (out == 0).double().mean().item() == pytest.approx(p, abs=spread + 1e-5)
    assert out.mean().item() == pytest.approx(1, abs=spread / (1 - p) + (0.004 if dtype == torch.bfloat16 else 1e-4))
    assert len(out.unique()) <= 2


def test_every_place_is_dropped_as_often() -> None:
    """Also the four that share one draw, and each by itself: no two places go together."""
    torch.manual_seed(0)
    layer, many = FastDropout(0.3), 20_000
    zeros = torch.stack([layer(torch.ones(7)) == 0 for _ in range(many)]).double()  # 7: no multiple of four
    assert (zeros.mean(0) - 0.3).abs().max() < 0.02
    together = torch.corrcoef(zeros.T) - torch.eye(7, dtype=torch.float64)
    assert together.abs().max() < 5 / many**0.5


def test_the_gradient_goes_where_the_values_went() -> None:
    x = torch.randn(50, 30, requires_grad=True)
    out = FastDropout(0.4)(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, out)


def test_the_seed_decides_and_rest_is_rest() -> None:
    layer, x = FastDropout(0.5), torch.randn(5, 9)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert layer.eval()(x) is x or torch.equal(layer(x), x)
    assert layer.train()(torch.zeros(0, 3)).shape == (0, 3)
