"""Small towers, and a batch for them."""

from __future__ import annotations

import torch

from regard.data import ImageTextBatch
from regard.models import EncoderConfig, TwoTowersConfig, ViTConfig
from regard.models.towers import TwoTowers
from regard.nn.heads import NoHeadConfig
from regard.tasks import ContrastiveConfig, ContrastiveTask

CONFIG = TwoTowersConfig(
    width=8,
    image=ViTConfig(image=8, channels=1, patch=4, layers=1, heads=2, width=16, class_token=False, head=NoHeadConfig()),
    text=EncoderConfig(vocabulary=20, context=6, layers=1, heads=2, width=16, zero_init=False, head=NoHeadConfig()),
)


def model() -> TwoTowers:
    torch.manual_seed(1)
    return CONFIG.build().double()


def task(languages: tuple[str, ...] = ("en",)) -> ContrastiveTask:
    return ContrastiveConfig(labels=("a", "b", "c"), languages=languages).build()


def batch(rows: int = 6) -> ImageTextBatch:
    generator = torch.Generator().manual_seed(2)
    return ImageTextBatch(
        torch.randn(rows, 1, 8, 8, generator=generator, dtype=torch.float64),
        torch.randint(3, (rows, 1), generator=generator),
        torch.randint(20, (rows, 6), generator=generator),
        torch.randint(1, 7, (rows,), generator=generator),
    )
