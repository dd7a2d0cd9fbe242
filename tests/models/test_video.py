"""The video model: tubelets are a 3-D convolution, times have positions, and other lengths are read or refused."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from regard.errors import UserError
from regard.models import VideoConfig
from regard.nn.patches import TubeletEmbedding
from regard.nn.positions.grid import GridRelativeConfig, GridRotaryConfig, NoGridConfig

CONFIG = VideoConfig(image=6, channels=2, patch=3, frames=4, tubelet=2, width=16, layers=2, heads=4)


def test_tubelets_are_a_convolution() -> None:
    embed = TubeletEmbedding(3, 2, 2, 5, 2, positions=False).double()
    clips = torch.randn(4, 2, 4, 6, 9, dtype=torch.float64)
    kernel = embed.project.weight.view(5, 2, 2, 3, 3)  # [C, M, frames, rows, columns]
    expected = F.conv3d(clips, kernel, embed.project.bias, stride=(2, 3, 3)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(clips), expected)
    assert embed.grid(clips) == (2, 3, 2)


@pytest.mark.parametrize("position", [GridRelativeConfig(), GridRotaryConfig()])
def test_the_order_of_frames_matters_only_with_positions(position) -> None:
    clips = torch.randn(2, 2, 4, 6, 6)
    swapped = clips[:, :, [2, 3, 0, 1]]
    torch.manual_seed(1)
    model = VideoConfig(**{**vars(CONFIG), "position": position}).build().eval()
    assert not torch.allclose(model(clips), model(swapped), atol=1e-4)  # type: ignore[operator]
    model = CONFIG.without_positions().build().eval()
    assert isinstance(model.config.position, NoGridConfig)  # type: ignore[attr-defined]
    torch.testing.assert_close(model(clips), model(swapped), rtol=1e-4, atol=1e-4)  # type: ignore[operator]


def test_shorter_clips_and_other_sizes_are_read_and_others_refused() -> None:
    model = CONFIG.build().eval()
    assert model(torch.randn(1, 2, 2, 9, 6)).shape == (1, 10)  # type: ignore[operator]
    for shape, problem in (((1, 2, 3, 6, 6), "3 frames"), ((1, 2, 6, 6, 6), "6 frames"), ((1, 2, 6, 6), "clips")):
        with pytest.raises(UserError, match=problem):
            model(torch.randn(shape))  # type: ignore[operator]
    with pytest.raises(UserError, match="cut into patches"):
        model(torch.randn(1, 2, 4, 6, 7))  # type: ignore[operator]
    with pytest.raises(UserError, match="no whole number of tubelets"):
        VideoConfig(frames=5).build()


def test_places_name_time_row_and_column() -> None:
    model = CONFIG.build()
    names = model.places(torch.zeros(1, 2, 4, 6, 6))  # type: ignore[operator]
    assert [name.strip() for name in names] == [
        "class", *(f"{time}: {row},{column}" for time in (1, 3) for row in (1, 2) for column in (1, 2))
    ]  # fmt: skip
