"""On a GPU every form of a mask equals the reference in float64, on each backend, eager and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention import BackendRefused, Softmax, attend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler has warnings of its own
]
B, H, N, D = 2, 4, 300, 64


def random_mask(*shape: int) -> Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.5).cuda()


def by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= 16 * (h + 1))


def by_row(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & ((q + k) % (b + 2) == 0)


FORMS: dict[str, Any] = {
    "boolean": lambda: random_mask(N, N),
    "boolean by row": lambda: random_mask(B, 1, N, N),
    "boolean by head": lambda: random_mask(1, H, N, N),
    "boolean by row and head": lambda: random_mask(B, H, N, N),
    "float": lambda: torch.where(random_mask(N, N), 0.5, float("-inf")),
    "float by head": lambda: torch.randn(H, N, N, generator=torch.Generator().manual_seed(4)).cuda(),
    "text": lambda: "causal & (window(64) | sinks(4))",
    "function": lambda: lambda q, k: (q >= k) & ((q // 32) == (k // 32)),
    "function by head": lambda: by_head,
    "function by row": lambda: by_row,
}


def outcome(backend: str, mask: Any, tensors: list[Tensor], compiled: bool = False) -> list[Tensor]:
    """The values and the gradients of q, k and v."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, mask, mechanism=Softmax(backend=backend)).values

    inputs = [x.detach().requires_grad_() for x in tensors]
    values = (torch.compile(run) if compiled else run)(*inputs)
    upstream = torch.randn(values.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [values, *torch.autograd.grad(values, inputs, upstream.to(values))]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_a_mask_equals_the_reference(form: str) -> None:
    torch.manual_seed(1)
    exact = [torch.randn(B, H, N, D, device="cuda", dtype=torch.float64) for _ in range(3)]
    mask = FORMS[form]()
    double = mask.double() if isinstance(mask, Tensor) and mask.is_floating_point() else mask
    want = outcome("reference", double, exact)
    ran = set()
    for backend in ("auto", "sdpa", "banded", "flex"):
        try:
            found = {"eager": outcome(backend, mask, [x.float() for x in exact])}
        except BackendRefused:
            continue
        ran.add(backend)
        found["compiled"] = outcome(backend, mask, [x.float() for x in exact], compiled=True)
        for how, got in found.items():
            for one, two in zip(got, want, strict=True):
                error = (one.double() - two).norm() / two.norm()
                assert error < 2e-5, f"{backend}, {how}: {error}"
    torch.compiler.reset()
    assert "auto" in ran
    assert "flex" in ran
