"""Studies: the words follow from the numbers, the measures are what they say, and the pages are safe to open."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from regard.data import TextBatch
from regard.errors import UserError
from regard.models import GPTConfig, RecurrentConfig
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection
from regard.studies import about, depth, get, gradients, images, names, parallel
from regard.studies.page import Study, page, write

SIZES: dict[str, Any] = {"vocabulary": 11, "context": 12, "width": 16}


def batch(rows: int = 3, length: int = 12) -> TextBatch:
    tokens = torch.randint(11, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return TextBatch(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_reach_of_a_recurrent_model_is_the_change_of_the_loss_with_a_state(cell):
    """dL/d(h, c) at one place, by moving the state a little in the direction of the gradient."""
    torch.manual_seed(1)
    model: Any = RecurrentConfig(cell=cell, layers=1, residual=False, **SIZES).build().double()
    inputs, targets, *_ = batch()
    one = TextBatch(inputs[:1], targets[:1])
    curve = gradients.gradient_norms(model, one)
    assert len(curve) == 12
    distance, (block,) = 4, model.blocks
    x = model.embed(one.inputs)
    _, state = block.recurrent(block.norm(x[:, : 12 - distance]))
    parts = [part.detach().requires_grad_() for part in state if part is not None]

    def loss(*given: torch.Tensor) -> torch.Tensor:
        out, _ = block.recurrent(
            block.norm(x[:, 12 - distance :]), None, type(state)(given[0], *given[1:], *[None] * (2 - len(given)))
        )
        return F.cross_entropy(model.head(model.norm(out))[:, -1], one.targets[:, -1])

    slopes = torch.autograd.grad(loss(*parts), parts)
    size = torch.cat([s.flatten() for s in slopes]).norm()
    step = 1e-5 / size
    moved = loss(*(p + step * s for p, s in zip(parts, slopes, strict=True)))
    back = loss(*(p - step * s for p, s in zip(parts, slopes, strict=True)))
    assert ((moved - back) / 2e-5).item() == pytest.approx(curve[distance], rel=1e-4)


def test_the_reach_of_a_transformer_has_a_place_for_every_token():
    torch.manual_seed(1)
    model = GPTConfig(layers=2, heads=2, zero_init=False, **SIZES).build()
    curve = gradients.gradient_norms(model, batch())
    assert len(curve) == 12
    assert min(curve) > 0


def test_a_model_without_context_knows_the_entropy_of_letters():
    class Even:
        vocabulary = 4

        def batch(self, step, *, seed, size):
            return TextBatch(torch.zeros(size, 4), torch.arange(4).expand(size, 4))

    even: Any = Even()
    assert depth.entropy(even) == pytest.approx(torch.tensor(4.0).log().item())


def test_words_follow_from_numbers():
    able = {"deep": [1.0] * 6, "shallow": [1.0, 1.0, 5.0, 5.0, 5.0, float("inf")], "hopeless": [4.0] * 6}
    said = " ".join(depth.words(able, 3.3))
    assert "Deep: learns at every depth up to 128" in said
    assert "Shallow: learns at 4, 8 layers and not at the others" in said
    assert "Hopeless: learns at no depth tried" in said

    steps = {"GRU": [733, 733 + 22 * 448], "Transformer": [85, 79]}
    slow = {"cpu": {"GRU": [10.0, 50.0], "Transformer": [20.0, 25.0]}}
    said = " ".join(parallel.words(steps, slow))
    assert "further token of a sequence: GRU 22. In all, and no more at 512 tokens than at 64: Transformer 79." in said
    assert "GRU 5.0, Transformer 1.2. Every model that computes token after token slows down more" in said
    assert "the Transformer is fastest with 25.0 ms, and the slowest takes 2.0 times" in said
    said = " ".join(parallel.words(steps, slow | {"cuda": {"GRU": [1.0, 1.0], "Transformer": [2.0, 3.0]}}))
    assert "GPU: from sequences of 32 to sequences of 2,048" in said
    assert "Not every model that computes token after token slows down more than every other" in said


def test_recurrent_models_wait_for_every_token_and_the_others_do_not():
    counts = {
        name: [parallel.counted(config, n) for n in (16, 32, 48)]
        for name, config in parallel.MODELS.items()
        if name != "GRU"  # as the LSTM
    }
    for name, (few, some, more) in counts.items():
        assert more - some == some - few
        assert (some > few + 16) == (name in ("RNN", "LSTM"))


def test_a_page_is_escaped_and_written_with_its_numbers(tmp_path):
    evil = "<script>alert(1)</script>"
    chart = ChartSection(
        evil, evil, [Series(evil, [(0.0, 1.0), (1.0, 2.0)])], Axes("x", "y"), columns=("a", evil), rows=[("1", evil)]
    )
    study = Study([evil], [chart], {"found": [1, 2]}, evil)
    assert "<script>alert" not in page("name", evil, study)
    path = write("name", evil, study, tmp_path / "new")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((tmp_path / "new" / "name.json").read_text())["found"] == [1, 2]
    assert "<script>alert" not in (tmp_path / "new" / "name.svg").read_text(encoding="utf-8")


def test_studies_are_found_and_described():
    assert {"bottleneck", "depth", "gradients"} <= set(names())
    assert not {"page", "short_training"} & set(names())  # files without a study
    for name in names():
        assert about(name).splitlines()[0].count("?") == 1
        assert f"regard study {name}" in about(name)
    with pytest.raises(UserError, match="did you mean depth"):
        get("depht")


def test_the_command_lists_them_without_torch():
    code = "import sys; from regard.cli import main; main(['study', '--json']); sys.exit(int('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == set(names())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depth", "gradients", "icl", "parallel", "universal"])
def test_a_study_runs_from_the_command_line(name, tmp_path):
    command = [sys.executable, "-m", "regard.cli", "study", name, "--scale", "0.02", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["answer"]
    assert (tmp_path / f"{name}.html").stat().st_size > 5000


def test_the_answer_about_images_follows_from_the_numbers():
    accuracy = {"A": [0.5] * 5, "B": [0.7, 0.7, 0.7, 0.7, 0.4], "C": [0.1] * 5}
    text = " ".join(images.words(accuracy, {"A": 1000, "B": 2000, "C": 3000}))
    assert "A (1,000 parameters): 50.0% with 100 images, 50.0% with 10,000" in text
    assert "The CNN is +20.0 points from the Vision Transformer with 100 images, -10.0 with 10,000." in text
    for config in images.MODELS.values():
        size = sum(p.numel() for p in replace(config, image=28, channels=1).build().parameters())
        assert 90_000 < size < 110_000  # they are compared at the same size
