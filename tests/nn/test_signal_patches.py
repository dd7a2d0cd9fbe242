"""Patches of signals: overlap, and what fills the last ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.models import SignalConfig
from regard.nn.heads import ClassesHeadConfig
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


@pytest.mark.parametrize("repeat", [False, True])
def test_a_padded_signal_equals_the_signal_alone(repeat: bool) -> None:
    torch.manual_seed(2)
    embed = PatchesConfig(4, 3, repeat)
    config = SignalConfig(
        points=14, channels=2, width=16, layers=1, heads=2, embed=embed, head=ClassesHeadConfig(5, pool="mean")
    )
    model = config.build().double().eval()
    x, lengths = torch.randn(3, 14, 2, dtype=torch.float64), torch.tensor([14, 5, 9])
    with torch.no_grad():
        found = model(x, lengths)
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(found[row], model(x[row : row + 1, :length])[0])
