"""The study of extrapolation: the same characters at every length, losses that are the model's, words from numbers."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.studies import about, extrapolation, names
from regard.studies.extrapolation import (
    POSITIONS,
    TIMES,
    TRAINED,
    LossCurve,
    endings,
    fits,
    position_losses,
    rescaled,
    words,
)

LONGEST = TRAINED * TIMES[-1]


@pytest.fixture
def texts(tmp_path) -> dict[int, torch.Tensor]:
    letters = random.Random(1).choices("abcdefg\n", k=80_000)
    (tmp_path / "letters.txt").write_text("".join(letters))
    return endings(TextConfig(path=str(tmp_path / "letters.txt"), validation=0.2), 5)


def model(name: str) -> Any:
    torch.manual_seed(1)
    config = GPTConfig(vocabulary=8, context=TRAINED, width=16, heads=2, layers=1, zero_init=False)
    return GPTConfig(**{**config.__dict__, "position": name}).build().eval()


def test_every_length_ends_with_the_same_characters(texts) -> None:
    assert [text.shape for text in texts.values()] == [(5, TRAINED * n + 1) for n in TIMES]
    for length, text in texts.items():
        assert torch.equal(text, texts[LONGEST][:, -length - 1 :])
    assert len({tuple(row) for row in texts[TRAINED].tolist()}) == 5


def test_losses_are_those_of_the_model(texts) -> None:
    made, text = model("alibi"), texts[LONGEST]
    found = position_losses(made, text)
    losses = torch.stack([F.cross_entropy(made(row[None, :-1])[0], row[1:], reduction="none") for row in text])
    assert found.positions == pytest.approx(losses.mean(0).tolist(), rel=1e-4)
    assert found.ends == pytest.approx(losses[:, -TRAINED // 2 :].mean(1).tolist(), rel=1e-4)


def test_scalings_are_set_to_each_length_and_taken_back(texts) -> None:
    made = model("rotary")
    plain, before = position_losses(made, texts[TRAINED]), made.position
    found = rescaled(made, texts)
    assert made.position is before
    for curves in found.values():
        assert list(curves) == list(texts)
        assert curves[TRAINED].ends == pytest.approx(plain.ends, rel=1e-5)  # not longer: nothing is scaled
    far = {tuple(curves[LONGEST].ends) for curves in found.values()}
    assert len({*far, tuple(position_losses(made, texts[LONGEST]).ends)}) == len(found) + 1


def test_learned_positions_end() -> None:
    assert not fits(model("learned"), TRAINED + 1)
    assert all(fits(model(name), LONGEST) for name in POSITIONS if name != "learned")


def test_words_follow_from_numbers() -> None:
    def curves(*ends: list[float]) -> dict[int, LossCurve]:
        return {n: LossCurve([], values) for n, values in zip((TRAINED, LONGEST), ends, strict=False)}

    said = words(
        {
            "gains": curves([1.5, 1.7, 1.6], [1.4, 1.61, 1.5]),
            "breaks": curves([1.5, 1.7, 1.6], [2.5, 2.8, 2.6]),
            "holds": curves([1.5, 1.7, 1.6], [1.6, 1.6, 1.6]),
            "stops": curves([1.4, 1.6, 1.5]),
        }
    )
    assert "better with gains (-0.097 ± 0.003); no different with holds (+0.000 ± 0.058); worse with breaks" in said[0]
    assert said[1].startswith("With stops positions")
    assert "At 512 characters gains has the lowest loss, 1.503; at 64 it is stops, 1.500" in said[2]


def test_it_is_found() -> None:
    assert "extrapolation" in names()
    assert about("extrapolation").splitlines()[0].count("?") == 1
    assert extrapolation.study.__doc__


@pytest.mark.slow
def test_it_runs_from_the_command_line(tmp_path) -> None:
    command = [sys.executable, "-m", "regard.cli", "study", "extrapolation", "--scale", "0.01", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert list(found["losses"]["learned"]) == [str(TRAINED)]
    assert all(
        list(curves) == [str(TRAINED * n) for n in TIMES]
        for name, curves in found["losses"].items()
        if name != "learned"
    )
    page = (tmp_path / "extrapolation.html").read_text(encoding="utf-8")
    assert "refused" in page
    assert "rotary, yarn" in page
