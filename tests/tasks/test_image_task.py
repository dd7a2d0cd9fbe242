"""Classes of images: the loss by its definition, mixed images, and runs from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.cli import main
from regard.data import ImageBatch, ImagesConfig
from regard.errors import UserError
from regard.models import EncoderConfig, ViTConfig
from regard.nn.heads import ClassesHeadConfig
from regard.recipes import recipe
from regard.tasks import ImageClassificationConfig
from regard.train.guard import check_start

MODEL = ViTConfig(image=8, channels=1, patch=4, layers=1, heads=2, width=16, head=ClassesHeadConfig(3))
TASK = ImageClassificationConfig(labels=("a", "b", "c"))
TINY = ("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--train.steps", "4")


def batch() -> ImageBatch:
    generator = torch.Generator().manual_seed(1)
    classes = torch.tensor([[2], [0], [-1], [1]])
    return ImageBatch(torch.randn(4, 1, 8, 8, generator=generator), classes)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_cross_entropy_of_the_classes_that_count(smoothing: float) -> None:
    model, given = MODEL.build(), batch()
    term = replace(TASK, smoothing=smoothing).build().terms(model, given)["label"]
    want = F.cross_entropy(
        model(given.inputs), given.targets[:, 0], ignore_index=-1, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(term.total, want)
    assert int(term.count) == 3


def test_a_mixed_image_has_both_classes_by_their_weights() -> None:
    model, given = MODEL.build(), batch()
    given = given._replace(targets=torch.tensor([[2], [0], [1], [1]]))
    others, weights = torch.tensor([[0], [1], [2], [0]]), torch.tensor([1.0, 0.25, 0.5, 0.0])
    found = TASK.build().terms(model, given._replace(others=others, weights=weights))["label"].total
    shares = torch.zeros(4, 3)
    for row, weight in enumerate(weights):
        shares[row, given.targets[row, 0]] += weight
        shares[row, others[row, 0]] += 1 - weight
    torch.testing.assert_close(found, F.cross_entropy(model(given.inputs), shares, reduction="sum"))


def test_the_model_is_fitted_to_the_images(tmp_path: Path) -> None:
    data = ImagesConfig(source="digits").build(0, tmp_path)
    given = replace(recipe("digits"), model=ViTConfig(patch=2, layers=1))
    model = given.model_for(data)
    assert isinstance(model, ViTConfig)
    assert (model.image, model.channels, model.head) == (8, 1, ClassesHeadConfig(10, data.labels, pool="cls"))
    mean = replace(given, model=replace(given.model, class_token=False)).model_for(data)
    assert isinstance(mean, ViTConfig)
    assert mean.head.pool == "mean"
    kept = replace(given, init="somewhere", model=replace(given.model, image=16, channels=1)).model_for(data)
    assert isinstance(kept, ViTConfig)
    assert kept.image == 16
    with pytest.raises(UserError, match="reads 3 channels, but digits has 1"):
        replace(given, init="somewhere").model_for(data)
    with pytest.raises(UserError, match="cannot learn from"):
        TASK.fit(_Other())  # type: ignore[arg-type]


class _Other:
    name = "a text"


def test_models_of_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="image-classification cannot train the encoder"):
        check_start(replace(recipe("digits"), model=EncoderConfig()))
    with pytest.raises(UserError, match="start from another recipe: regard train digits"):
        check_start(replace(recipe("shakespeare"), model=MODEL))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_run_from_training_to_predictions(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--name", "one", *TINY, "--json"]) == 0
    assert (room / "runs/one/report.html").exists()
    for part in ("validation", "test"):
        capsys.readouterr()
        assert main(["evaluate", "one", "--part", part, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["examples"] == 180
        assert 0 <= record["accuracy"] <= 1
    assert main(["predict", "one", "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert len(predictions) == 10
    assert all(one["given"] in one["probabilities"] for one in predictions)
    assert main(["info", "one"]) == 0
    assert "vit (layers 1, heads 2, width 16) on digits" in capsys.readouterr().out
    assert main(["doctor", "one"]) == 0
    assert main(["look", "one", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (seen["tokens"], seen["attentions"]) == (17, 1)
    assert main(["prove", "one", "--claims", "batching,finite,order,accumulation,checkpoint"]) == 0
    for command in (["generate", "one"], ["embed", "one"], ["compress", "one"]):
        assert main(command) == 2
    assert "reads images" in capsys.readouterr().err
    assert main(["export", "one", "out"]) == 0
    assert main(["import", "out", "back", "--json"]) == 0
    assert main(["train", "digits", "--name", "two", "--init", "one", "--train.steps", "2"]) == 0


def test_predictions_of_files(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    assert main(["train", "digits", "--name", "one", *TINY]) == 0
    (room / "some").mkdir()
    pixels = np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)
    image.fromarray(pixels).save(room / "some" / "a.png")
    image.fromarray(pixels[:, ::-1]).save(room / "some" / "b.jpg")
    capsys.readouterr()
    assert main(["predict", "one", "some", "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [Path(one["example"]).name for one in predictions] == ["a.png", "b.jpg"]
    assert main(["look", "one", "--file", "some/a.png"]) == 0
    assert main(["predict", "one", "nothing.png"]) == 2
    assert "nothing.png" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["digits"])
def test_a_recipe_is_proven(name: str, room: Path) -> None:
    assert main(["prove", name, "--claims", "batching,finite,backends,order,accumulation,checkpoint,loss"]) == 0


@pytest.mark.slow
def test_digits_are_learned(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--name", "one"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "one", "--part", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.95
