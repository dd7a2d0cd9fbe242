"""Patches of signals: overlap, and what fills the last ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.nn.signals import PatchesConfig


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 30), st.booleans())
def test_a_patch_begins_every_stride_points(size: int, stride: int, length: int, repeat: bool) -> None:
    if stride > size:
        with pytest.raises(ValueError, match="stride"):
            PatchesConfig(size, stride).check()
        return
    config = PatchesConfig(size, stride, repeat)
    embedding = config.build(2, size * 2)
    with torch.no_grad():
        embedding.project.weight.copy_(torch.eye(size * 2))
        embedding.project.bias.zero_()
    x = torch.randn(3, length, 2)
    found = embedding(x).detach()
    assert found.shape[1] == config.count(length) == int(config.count(torch.tensor([length])))
    end = x[:, -1:].expand(-1, size, -1) if repeat else torch.zeros(3, size, 2)
    whole = torch.cat((x, end), 1)
    for number in range(found.shape[1]):
        patch = whole[:, number * stride : number * stride + size]
        torch.testing.assert_close(found[:, number], patch.flatten(1))


def test_the_paper_has_64_patches() -> None:
    assert PatchesConfig(16, 8, True).count(512) == 64  # Nie et al. 2023, sec. 4.1
