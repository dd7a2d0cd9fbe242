"""Law 6: the worked example of the notes, "The cat sat on the mat", through the operator itself."""

from __future__ import annotations

import pytest
import torch

from regard.attention import BackendRefused, Softmax, attend

QUERY = torch.tensor([[0.9, 0.1, 0.2, 0.3]])  # an animal, please; hardly an action, a bit of an object, definite
KEYS = torch.tensor(
    [
        [0.0, 0.0, 0.0, 1.0],  # The
        [1.0, 0.0, 0.3, 0.0],  # cat
        [0.0, 1.0, 0.0, 0.0],  # sat
        [0.0, 0.0, 0.0, 0.0],  # on
        [0.0, 0.0, 0.0, 1.0],  # the
        [0.0, 0.0, 1.0, 0.0],  # mat
    ]
)
VALUES = torch.tensor(
    [
        [0.1, 0.0, 0.0, 0.8],
        [0.9, 0.0, 0.1, 0.7],
        [0.0, 0.9, 0.0, 0.3],
        [0.0, 0.0, 0.5, 0.0],
        [0.0, 0.0, 0.0, 0.9],
        [0.0, 0.0, 0.9, 0.6],
    ]
)
WEIGHTS = [0.164, 0.228, 0.148, 0.141, 0.164, 0.156]
OUTPUT = [0.221, 0.133, 0.233, 0.576]


def rounded(x: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in x.double().flatten().tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_and_output_of_the_notes(dtype: torch.dtype) -> None:
    found = attend(QUERY.to(dtype), KEYS.to(dtype), VALUES.to(dtype), weights=True)
    assert found.weights is not None
    assert rounded(found.weights) == WEIGHTS
    assert rounded(found.values) == OUTPUT


@pytest.mark.parametrize("backend", ["auto", "reference", "small_cpu", "sdpa", "banded"])
def test_every_backend_gives_the_same_output(backend: str) -> None:
    assert rounded(attend(QUERY, KEYS, VALUES, mechanism=Softmax(backend=backend)).values) == OUTPUT


def test_the_cat_is_what_hard_lookup_finds() -> None:
    found = attend(QUERY, KEYS, VALUES, mechanism=Softmax(temperature=0.0))
    assert rounded(found.values) == [0.9, 0.0, 0.1, 0.7]
    with pytest.raises(BackendRefused, match="hard lookup is no softmax"):
        attend(QUERY, KEYS, VALUES, mechanism=Softmax(temperature=0.0, backend="sdpa"))
