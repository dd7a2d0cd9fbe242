"""The commands on runs of scenes and clips: what each does, or why it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli import main
from regard.models import EncoderConfig, HybridViTConfig
from regard.nn.heads import NoHeadConfig
from regard.recipes import get
from regard.runs import Run
from regard.train import Experiment, fit

SIZES = {"layers": 1, "heads": 2, "width": 16}
TOWERS = {
    "image": HybridViTConfig(layers=1, heads=2, width=16, image=24, patch=4, class_token=False, head=NoHeadConfig()),
    "text": EncoderConfig(layers=1, heads=2, width=16, context=12, head=NoHeadConfig()),
}
MODELS = {
    "scenes": (TOWERS, {"scenes": 8}),
    "text-to-image": ({**SIZES, "coder_width": 16}, {"scenes": 8}),
    "detect-digits": ({**SIZES, "decoder_layers": 1}, {"scenes": 8}),
    "moving-digits": (SIZES, {"clips": 8}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step of each recipe."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (model, data) in MODELS.items():
        recipe = get(name)
        assert isinstance(recipe, Experiment)
        train = replace(recipe.train, steps=1, device="cpu")
        sizes, some = replace(recipe.model, **model), replace(recipe.data, batch=4, **data)  # type: ignore[arg-type]
        fit(replace(recipe, model=sizes, data=some, train=train), name, runs=folder)
    return folder


def test_captions_become_a_picture_which_is_captioned(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, picture = runs / "text-to-image", runs / "out.png"
    given = ["--prompt", "a red 3 left of a blue 7", "--samples", "1", "--out", str(picture), "--json"]
    assert main(["generate", str(run), *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(picture)
    assert found["captions"] == ["a red 3 left of a blue 7"]
    first = picture.read_bytes()
    assert main(["generate", str(run), *given]) == 0
    assert picture.read_bytes() == first
    assert main(["predict", str(run), str(picture), "--json"]) == 0
    assert "caption" in json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"][0]
    assert main(["generate", str(run), "--prompt", "two green 4s", "--samples", "3"]) == 0
    assert Run.open(run).file("picture.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "text-to-image"], "give a caption"),
        (["generate", "text-to-image", "--prompt", "a red dog"], "is no caption of a scene"),
        (["generate", "text-to-image", "--prompt", "a red 3", "--temperature", "-1"], "temperature"),
        (["generate", "text-to-image", "--prompt", "a red 3", "--out", "no/such/folder.png"], "there is no folder"),
        (["generate", "moving-digits", "--prompt", "a red 3"], "generates nothing"),
        (["look", "text-to-image"], "look shows models of text"),
        (["export", "moving-digits", "folder"], "no family of published models"),
        (["predict", "detect-digits", "no-such.png"], "no-such.png"),
        (["predict", "moving-digits", "no-such.gif"], "no-such.gif"),
    ],
)
def test_what_cannot_be_done_is_refused(runs: Path, capsys, arguments: list[str], message: str) -> None:
    command, name, *more = arguments
    assert main([command, str(runs / name), *more]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        ("text-to-image", "caption_exact"),
        ("scenes", "zero_shot"),
        ("detect-digits", "map_50"),
        ("moving-digits", "accuracy"),
    ],
)
def test_a_run_is_measured_and_answers(runs: Path, capsys, name: str, measure: str) -> None:
    assert main(["evaluate", str(runs / name), "--part", "test", "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out.splitlines()[-1])[measure] <= 1
    assert main(["predict", str(runs / name), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]) == 10
    if name != "text-to-image":
        assert main(["look", str(runs / name), "--out", str(runs / "look.html")]) == 0
