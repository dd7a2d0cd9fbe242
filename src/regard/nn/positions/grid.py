"""Position encodings on a grid, for the patches of images: phases have two axes.

An image of another size than in training is the same grid at another resolution: its phases are fractions
(``patches``). Learned vectors are interpolated; waves and rotations accept fractions. A class token before the patches
is in no place of the grid; its phase is (-1, -1), which no patch has.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Slots
from regard.attention.score import GridRelative
from regard.config import Choice, option
from regard.errors import UserError
from regard.nn.positions.position import Distances, Position, RotaryRotation, rotary_rotation, sinusoids
from regard.nn.positions.scaling import angle_dtype, frequencies

Interpolation = Literal["bicubic", "bilinear"]
OUTSIDE = -1  # the phase of tokens before the patches, on both axes


def patches(
    rows: int,
    columns: int,
    times: int = 1,
    *,
    of: tuple[int, int] | None = None,
    before: int = 0,
    device: torch.device | str = "cpu",
) -> Slots:
    """The slots of an image's patches, row by row, after ``before`` tokens outside of the grid.

    ``times``: the same grid so many times, for the times of a clip. ``of``: the grid in training, if it was another.
    The centers of patches correspond: patch i of n is at (i + ½)·m/n - ½ of m.

    >>> patches(1, 4, of=(1, 2)).phase[0, :, 1].tolist()
    [-0.25, 0.25, 0.75, 1.25]
    """
    whole, axes = of in (None, (rows, columns)), []
    for count, trained in zip((rows, columns), of or (rows, columns), strict=True):
        place = torch.arange(count, device=device)
        axes.append(place if whole else (place.to(angle_dtype(place.device)) + 0.5) * (trained / count) - 0.5)
    phase = F.pad(torch.cartesian_prod(*axes).repeat(times, 1), (0, 0, before, 0), value=OUTSIDE)
    order = torch.arange(len(phase), device=device)
    return Slots(order[None], torch.zeros_like(order)[None], phase[None])


class GridSinusoidal(Position):
    """Waves of the row in one half of the width and of the column in the other, added."""

    def __init__(self, width: int, *, base: float = 10_000.0):
        super().__init__()
        if width % 4:
            raise UserError(f"2-D waves need a width that is a multiple of 4, not {width}")
        self.width, self.base = width, base

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        waves = [sinusoids(phase[..., axis], self.width // 2, self.base) for axis in (0, 1)]
        return x + torch.cat(waves, dim=-1).to(x.dtype)


class GridRaster(Position):
    """Waves of the number of the patch, counted row by row: the image as a plain sequence."""

    def __init__(self, columns: int, width: int, *, base: float = 10_000.0):
        super().__init__()
        if width % 2:
            raise UserError(f"waves need an even width, not {width}")
        self.columns, self.width, self.base = columns, width, base

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        return x + sinusoids(phase[..., 0] * self.columns + phase[..., 1], self.width, self.base).to(x.dtype)


class GridRotary(Position):
    """Half of a head's pairs rotate by the row, half by the column: scores depend on relative rows and columns only."""

    def __init__(self, head_width: int, *, base: float = 100.0):
        super().__init__()
        if head_width % 4:
            raise UserError(
                f"2-D rotary positions rotate pairs for two axes: a head width of {head_width} is no multiple of 4; "
                "change width or heads"
            )
        self.head_width, self.base = head_width, base

    def rotation(self, phase: Tensor) -> RotaryRotation:
        rates = frequencies(self.head_width // 2, self.base, phase.device)  # [D/4]
        return rotary_rotation((phase[:, :, None, :, None] * rates).flatten(-2))


class GridLearned(Position):
    """A learned vector per patch of the trained grid, interpolated at fractional phases, and one per token before them.

    Bicubic interpolation is what ViT's code does for other resolutions (Dosovitskiy et al. 2021, sec. 3.2, say "2D
    interpolation").
    """

    def __init__(self, rows: int, columns: int, width: int, interpolation: Interpolation = "bicubic", before: int = 0):
        super().__init__()
        self.rows, self.columns, self.before = rows, columns, before
        self.interpolation: Interpolation = interpolation
        self.table = nn.Embedding(before + rows * columns, width)  # the rows of the tokens before the patches first

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        first = torch.arange(self.before, device=phase.device).expand(len(phase), -1)
        return x + torch.cat((self.table(first), self.at(phase[:, self.before :])), dim=1)

    def at(self, phase: Tensor) -> Tensor:
        """The vectors [..., C] at ``phase`` [..., 2] of patches."""
        if not phase.is_floating_point():
            return self.table(phase[..., 0] * self.columns + phase[..., 1] + self.before)
        down, down_share = taps(phase[..., 0], self.rows, self.interpolation)
        across, across_share = taps(phase[..., 1], self.columns, self.interpolation)
        near = (down[..., :, None] * self.columns + across[..., None, :]).flatten(-2)  # [..., taps²]
        share = (down_share[..., :, None] * across_share[..., None, :]).flatten(-2)
        weight = self.table.weight
        flat = (near + self.before).flatten(0, -2), share.flatten(0, -2).to(weight.dtype)
        return F.embedding_bag(flat[0], weight, mode="sum", per_sample_weights=flat[1]).unflatten(0, phase.shape[:-1])


def taps(place: Tensor, count: int, interpolation: Interpolation) -> tuple[Tensor, Tensor]:
    """The grid points on a line of ``count`` that interpolate ``place``, and their weights, [..., 4 or 2].

    Bicubic: cubic convolution with a = -0.75 (Keys 1981, eq. 4), as in PyTorch. Beyond the ends, the end points.
    """
    low = place.floor()
    t = place - low
    if interpolation == "bilinear":
        shares, first = [1 - t, t], 0
    else:
        a = -0.75

        def near(x: Tensor) -> Tensor:  # up to distance 1
            return ((a + 2) * x - (a + 3)) * x * x + 1

        def far(x: Tensor) -> Tensor:  # distance 1 to 2
            return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

        shares, first = [far(t + 1), near(t), near(1 - t), far(2 - t)], -1
    index = low.long()[..., None] + torch.arange(first, first + len(shares), device=place.device)
    return index.clamp(0, count - 1), torch.stack(shares, dim=-1)


class GridDistances(Distances):
    """A bias by the distance of two patches, a separate one for each layer."""

    whole = True


class GridPositionConfig(Choice):
    """Which position encoding an image model uses."""

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        """The encoding. ``grid``: rows and columns of patches in training; ``before``: tokens before the patches."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoGridConfig(GridPositionConfig, kind="none"):
    """No positions: an image is a set of patches."""

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return Position()


@dataclass(frozen=True)
class GridSinusoidalConfig(GridPositionConfig, kind="sinusoidal"):
    """Fixed waves of row and column."""

    base: float = option(10_000.0, "the longest wavelength over 2 pi")

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return GridSinusoidal(width, base=self.base)


@dataclass(frozen=True)
class GridRasterConfig(GridPositionConfig, kind="raster"):
    """Fixed waves of the number of a patch, row by row, as for a text."""

    base: float = option(10_000.0, "the longest wavelength over 2 pi")

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return GridRaster(grid[1], width, base=self.base)


@dataclass(frozen=True)
class GridLearnedConfig(GridPositionConfig, kind="learned"):
    """A learned vector per patch."""

    interpolation: Literal["bicubic", "bilinear"] = option(
        "bicubic", "interpolation of the vectors for another resolution"
    )

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return GridLearned(*grid, width, self.interpolation, before)


@dataclass(frozen=True)
class GridRotaryConfig(GridPositionConfig, kind="rotary"):
    """Rotation by row and by column (Heo et al. 2024, "axial")."""

    base: float = option(100.0, "the longest wavelength over 2 pi")

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return GridRotary(head_width, base=self.base)


@dataclass(frozen=True)
class GridRelativeConfig(GridPositionConfig, kind="relative"):
    """A learned value per layer, head and difference of rows and columns (Liu et al. 2021, eq. 4)."""

    def build(self, *, width: int, head_width: int, grid: tuple[int, int], before: int = 0) -> Position:
        return GridDistances(partial(GridRelative, width // head_width, *grid, outside=before > 0))
