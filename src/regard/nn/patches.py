"""Patches: an image as a sequence of vectors."""

from __future__ import annotations

from torch import Tensor, nn

from regard.errors import UserError
from regard.nn.linear import Linear


def cut(images: Tensor, patch: int) -> Tensor:
    """Images [B, M, Y, X] to flat patches [B, N, M·P·P], row by row; P = ``patch``.

    >>> import torch
    >>> cut(torch.arange(8.0).view(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    tiles = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, M, rows, P, columns, P]
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def joined(patches: Tensor, columns: int, channels: int) -> Tensor:
    """The inverse of ``cut``: flat patches [B, N, M·P·P], ``columns`` of them in a row, to images [B, M, Y, X]."""
    side = round((patches.shape[-1] // channels) ** 0.5)
    tiles = patches.unflatten(2, (channels, side, side)).unflatten(1, (-1, columns))  # [B, rows, columns, M, P, P]
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def grid(images: Tensor, channels: int, patch: int) -> tuple[int, int]:
    """The rows and columns of patches of images [B, M, Y, X]; a ``UserError`` for images that cannot be cut."""
    if images.ndim != 4 or images.shape[1] != channels:
        raise UserError(f"this model reads images of shape [B, {channels}, Y, X], not {list(images.shape)}")
    rows, columns = images.shape[2:]
    if not rows or not columns or rows % patch or columns % patch:
        raise UserError(
            f"an image of {rows} x {columns} pixels cannot be cut into patches of {patch} x {patch}; resize it to "
            f"multiples of {patch}"
        )
    return rows // patch, columns // patch


class PatchEmbedding(nn.Module):
    """A linear map of each flat patch (Dosovitskiy et al. 2021, eq. 1): images [B, M, Y, X] to [B, N, C].

    It equals a convolution whose kernel and stride are the patch.
    """

    def __init__(self, patch: int, channels: int, width: int):
        super().__init__()
        self.patch, self.channels = patch, channels
        self.project = Linear(channels * patch * patch, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(cut(images, self.patch))

    def grid(self, images: Tensor) -> tuple[int, ...]:
        """The rows and columns of patches; a ``UserError`` for images that cannot be cut."""
        return grid(images, self.channels, self.patch)

    def reset(self) -> None:
        """Outputs of variance 1 for pixels of variance 1; the bias becomes 0."""
        self.project.init(lambda weight: nn.init.normal_(weight, std=self.project.in_features**-0.5))


class ConvolutionEmbedding(PatchEmbedding):
    """Convolutions over overlapping parts instead of one linear map: images [B, M, Y, X] to [B, N, C].

    The hybrid of Dosovitskiy et al. 2021 (sec. 3.1) with a small stem as in Xiao et al. 2021: for each halving of the
    grid two convolutions of 3 x 3, the second with a stride of 2.
    """

    def __init__(self, patch: int, channels: int, width: int):
        nn.Module.__init__(self)
        self.patch, self.channels = patch, channels
        stages, halvings = nn.Sequential(), patch.bit_length() - 1
        for stage in range(halvings):
            own = max(8, width >> (halvings - stage))
            for stride in (1, 2):
                stages.append(nn.Conv2d(channels, own, kernel_size=3, stride=stride, padding=1, bias=False))
                stages.append(nn.GroupNorm(1, own))
                stages.append(nn.GELU())
                channels = own
        self.stages, self.project = stages, Linear(channels, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.stages(images).flatten(2).transpose(1, 2))

    def reset(self) -> None:
        """Convolutions that keep the variance (He et al. 2015); outputs of variance about 1."""
        for layer in self.stages:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        super().reset()


class TubeletEmbedding(PatchEmbedding):
    """A linear map of each flat tubelet, a patch of some successive frames (Arnab et al. 2021, ViViT, sec. 3.2).

    Clips [B, M, T, Y, X] to [B, N, C], time by time and each row by row. ``positions``: with a learned vector for each
    of the ``times``.
    """

    def __init__(self, patch: int, frames: int, channels: int, width: int, times: int, *, positions: bool):
        super().__init__(patch, channels * frames, width)
        self.frames, self.times = frames, times
        self.time = nn.Embedding(times, width) if positions else None

    def forward(self, images: Tensor) -> Tensor:
        tubelets = images.unflatten(2, (-1, self.frames)).transpose(1, 2).flatten(2, 3)  # [B, times, M·frames, Y, X]
        x = super().forward(tubelets.flatten(0, 1)).unflatten(0, tubelets.shape[:2])  # [B, times, rows·columns, C]
        if self.time is not None:
            x = x + self.time.weight[: x.shape[1], None]
        return x.flatten(1, 2)

    def grid(self, images: Tensor) -> tuple[int, ...]:
        """The rows and columns of patches, and the times; a ``UserError`` for clips that cannot be cut."""
        channels, most = self.channels // self.frames, self.times * self.frames
        if images.ndim != 5 or images.shape[1] != channels:
            raise UserError(f"this model reads clips of shape [B, {channels}, T, Y, X], not {list(images.shape)}")
        count = images.shape[2]
        if not count or count % self.frames or count > most:
            raise UserError(f"a clip has {count} frames; this model reads up to {most}, in multiples of {self.frames}")
        return *super().grid(images[:, 0, : self.frames].repeat(1, channels, 1, 1)), count // self.frames
