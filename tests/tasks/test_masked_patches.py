"""Masked patches: what is hidden, the loss by its definition, and fine-tuning from a run."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from regard.cli import main
from regard.data import ImageBatch
from regard.models import ViT, ViTConfig
from regard.nn.heads import PixelsHeadConfig
from regard.nn.patches import cut
from regard.tasks import MaskedPatchesConfig

MODEL = ViTConfig(image=12, channels=2, patch=3, layers=1, heads=2, width=16, head=PixelsHeadConfig(18))
TINY = ("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--train.steps", "4")


def built() -> ViT:
    torch.manual_seed(1)
    return MODEL.make().double()


def images(count: int = 6, seed: int = 0) -> torch.Tensor:
    pixels = torch.randint(256, (count, 2, 12, 12), generator=torch.Generator().manual_seed(seed))
    return pixels.double() / 127.5 - 1


def term(model: ViT, pixels: torch.Tensor, share: float = 0.6) -> torch.Tensor:
    batch = ImageBatch(pixels, torch.zeros(len(pixels), 1, dtype=torch.long))
    return MaskedPatchesConfig(share=share).build().terms(model, batch)["masked_patches"].total


@given(st.floats(0.01, 0.99), st.integers(0, 99))
def test_every_image_hides_its_own_share(share: float, seed: int) -> None:
    pixels = images(5, seed)
    task = MaskedPatchesConfig(share=share).build()
    masked = task.masked(cut(pixels, 3))
    assert (masked.sum(1) == max(1, round(share * 16))).all()
    assert torch.equal(task.masked(cut(pixels[2:4], 3)), masked[2:4])  # whatever else is in the batch


def test_the_choice_differs_between_images_and_is_even() -> None:
    masked = MaskedPatchesConfig().build().masked(cut(images(400), 3)).double()
    assert len({tuple(row) for row in masked.tolist()}) > 380
    assert (masked.mean(0) - 10 / 16).abs().max() < 0.15


def test_the_loss_is_the_error_of_hidden_patches_alone() -> None:
    model, pixels = built(), images()
    patches = cut(pixels, 3)
    masked = MaskedPatchesConfig().build().masked(patches)
    gray = torch.stack([torch.where(hidden[:, None], 0.0, rows) for hidden, rows in zip(masked, patches, strict=True)])
    tiles = gray.view(6, 4, 4, 2, 3, 3).permute(0, 3, 1, 4, 2, 5).reshape(6, 2, 12, 12)
    predicted = model.head(model.features(tiles)[:, 1:]).float().detach()
    want = 0.0
    for row in range(6):
        for place in masked[row].nonzero()[:, 0]:
            target = patches[row, place]
            normalized = (target - target.mean()) / (target.var(correction=0) + 1e-2).sqrt()
            want += float((predicted[row, place] - normalized).square().mean()) / int(masked[row].sum())
    assert term(model, pixels).detach().item() == pytest.approx(want, rel=1e-6)


def test_hidden_pixels_do_not_reach_the_model() -> None:
    model, pixels = built(), images(1)
    seen: list[torch.Tensor] = []
    model.embed.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    term(model, pixels)
    hidden = MaskedPatchesConfig().build().masked(cut(pixels, 3))[0]
    shown = cut(seen[0], 3)[0]
    assert (shown[hidden] == 0).all()
    assert torch.equal(shown[~hidden], cut(pixels, 3)[0][~hidden])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share must be above 0"):
        MaskedPatchesConfig(share=share).check()


def test_a_classifier_starts_from_masked_patches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ("--runs", str(tmp_path))
    assert main(["train", "digits", "--name", "pre", "--task", "masked-patches", *TINY, *runs]) == 0
    assert main(["train", "digits", "--init", str(tmp_path / "pre"), "--name", "fine", "--train.steps=3", *runs]) == 0
    assert "new: unembed.weight" in capsys.readouterr().err
    for options, message in (
        (("--data.cutmix", "0.5"), "has no use for mixed images"),
        (("--model", "image-cnn"), "trains a Vision Transformer, and this model is of kind image-cnn"),
    ):
        assert main(["train", "digits", "--task", "masked-patches", *options, *runs]) != 0
        assert message in capsys.readouterr().err
