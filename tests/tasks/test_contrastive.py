"""The contrastive loss: its definition, symmetry, exactness over ranks; its measures; a run from end to end."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from contrastive_kit import batch, model, task
from hypothesis import given
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from forked_ranks import run_ranks
from regard.cli import main

sys.path.append(str(Path(__file__).parents[1] / "data"))
from imagetext_kit import folder

SIZES = ("image.width", "text.width"), ("image.layers", "text.layers"), ("image.heads", "text.heads")
SCRATCH = ["--init", "scratch", "--train.adapt", "full", "--model.image", "hybrid-vit", "--model.image.patch", "4"]
SCRATCH += ["--model.image.class_token", "false", "--model.image.head", "none"]
TINY = [
    word for names, n in zip(SIZES, ["16", "1", "2"], strict=True) for name in names for word in (f"--model.{name}", n)
]


class Fixed:
    """A model that gives these vectors [B, 2, D]."""

    training = False

    def __init__(self, vectors: Tensor, prompts: Tensor | None = None):
        self.vectors, self.prompts = vectors, prompts

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.vectors

    def modules(self) -> list[Any]:
        return []

    def text_vectors(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        assert self.prompts is not None
        return self.prompts


def given_vectors(vectors: Tensor, rows: Tensor | None = None) -> tuple[float, dict[str, float]]:
    """The loss and the measures for these vectors."""
    targets = torch.zeros(len(vectors), 1, dtype=torch.int64) if rows is None else rows
    one = batch(len(vectors))._replace(targets=targets)
    terms, sums = task().measured(Fixed(vectors), one)  # type: ignore[arg-type]
    return float(terms["contrastive"].total), task().metrics(sums)


def test_the_loss_is_that_of_the_paper() -> None:
    """Radford et al. 2021, figure 3, with sums for means."""
    towers, rows = model(), batch()
    x = towers(*rows.arguments)
    unit = F.normalize(x, dim=-1)
    scale = towers.log_scale.exp()
    logits = unit[:, 0] @ unit[:, 1].T * scale
    labels = torch.arange(6)
    want = (F.cross_entropy(logits, labels, reduction="sum") + F.cross_entropy(logits.T, labels, reduction="sum")) / 2
    term = task().terms(towers, rows)["contrastive"]
    torch.testing.assert_close(term.total, want)
    assert float(term.count) == 6
    assert not term.additive


def test_hard_negatives_are_further_texts_for_the_images() -> None:
    towers, rows = model().train(), batch()
    hard = rows._replace(prompts=torch.randint(20, (9, 6)), prompt_lengths=torch.randint(1, 7, (9,)))
    plain, found = (task().terms(towers, one)["contrastive"] for one in (rows, hard))
    assert hard.prompts is not None
    assert hard.prompt_lengths is not None
    vectors, negatives = towers(*rows.arguments), towers.text_vectors(hard.prompts, hard.prompt_lengths)
    scores, labels = vectors[:, 0] @ vectors[:, 1].T, torch.arange(6)
    wider = torch.cat((scores, vectors[:, 0] @ negatives.T), 1)
    want = F.cross_entropy(wider, labels, reduction="sum") - F.cross_entropy(scores, labels, reduction="sum")
    torch.testing.assert_close(found.total - plain.total, want / 2)
    assert "zero_shot" not in task().metrics(task().measured(towers, hard)[1])  # they are no prompts of classes


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 5))
def test_it_is_symmetric_and_does_not_depend_on_the_order(seed: int, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, 2, width, generator=generator, dtype=torch.float64)
    loss, _ = given_vectors(vectors)
    swapped, _ = given_vectors(vectors.flip(1))
    shuffled, _ = given_vectors(vectors[torch.randperm(rows, generator=generator)])
    assert math.isclose(loss, swapped, rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(loss, shuffled, rel_tol=1e-9, abs_tol=1e-12)


def test_two_ranks_have_the_loss_and_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    run_ranks(Path(__file__).with_name("contrastive_ranks.py"), 2, tmp_path)
    found, towers = load_file(tmp_path / "found"), model()
    term = task().terms(towers.train(), batch())["contrastive"]
    term.total.backward()
    torch.testing.assert_close(found.pop("loss"), term.total.detach())
    want = {name: parameter.grad for name, parameter in towers.named_parameters()}
    assert found.keys() == want.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, want[name], rtol=1e-8, atol=1e-10, msg=name)


def test_measures_of_a_perfect_a_blind_and_a_broken_model() -> None:
    perfect = torch.eye(10, dtype=torch.float64)[:, None].expand(-1, 2, -1)
    assert given_vectors(perfect)[1] == {"top1": 1.0, "top5": 1.0, "image_top5": 1.0}
    blind = torch.ones(10, 2, 4, dtype=torch.float64)
    assert given_vectors(blind)[1] == {"top1": 0.0, "top5": 0.0, "image_top5": 0.0}
    assert given_vectors(blind * torch.nan)[1]["top1"] == 0.0
    second = torch.roll(perfect, 1, 2)
    wrong = torch.stack((perfect[:, 0], second[:, 1]), 1)  # the text of another image, but five may be wrong
    assert given_vectors(wrong)[1]["top1"] == 0.0
    few = torch.full((10, 1), -1)
    few[3] = 0
    assert given_vectors(perfect, few)[1]["top1"] == 1.0  # nine are candidates only


def test_zero_shot_adds_the_prompts_of_a_class() -> None:
    vectors = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 1.0]]])
    prompts = torch.tensor([[1.0, 0.0], [0.0, 0.9], [0.0, 0.9]])
    rows = batch(2)._replace(
        targets=torch.tensor([[0], [1]]),
        prompts=torch.zeros(3, 1, dtype=torch.int64),
        prompt_lengths=torch.ones(3, dtype=torch.int64),
        prompt_classes=torch.tensor([0, 1, 1]),
        names=("a", "b"),
    )
    fixed: Any = Fixed(vectors, prompts)
    shares = task().class_shares(fixed, rows, vectors[:, 0])
    want = (vectors[:, 0] @ prompts.T).softmax(1)
    torch.testing.assert_close(shares, torch.stack((want[:, 0], want[:, 1] + want[:, 2]), 1))
    assert task().metrics(task().measured(fixed, rows)[1])["zero_shot"] == 1.0
    assert [one.record["label"] for one in task().predictions(fixed, rows)] == ["a", "b"]


def test_measures_are_kept_apart_by_language() -> None:
    own = task(("en", "de"))
    vectors = torch.eye(10, dtype=torch.float64)[:, None].expand(-1, 2, -1)
    fixed: Any = Fixed(vectors)
    sums = own.measured(fixed, batch(10)._replace(language=1))[1]
    assert own.metrics(sums) == {"top5": 0.0, "top1_de": 1.0, "top5_de": 1.0, "image_top5_de": 1.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    path = tmp_path_factory.mktemp("clip")
    pictures = folder(path / "boxes")
    data = ["--data.path", str(pictures), "--data.size", "8", "--data.batch", "12", "--data.test", "0.2"]
    steps = ["--train.steps", "4", "--train.evaluate_every", "2", "--data.validation", "0.2"]
    assert (
        main(
            [
                "train",
                "emoji-clip",
                *SCRATCH,
                *TINY,
                *data,
                *steps,
                "--name",
                "one",
                "--runs",
                str(path / "runs"),
            ]
        )
        == 0
    )
    return SimpleNamespace(path=str(path / "runs" / "one"), pictures=pictures)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_is_measured_and_predicts(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "evaluate", run.path, "--part", "test")
    assert found["examples"] == 4
    assert {"top1", "top5", "image_top5", "zero_shot"} <= found.keys()
    assert answer(capsys, "evaluate", run.path, "--source", str(run.pictures))["examples"] == 4
    held_out = answer(capsys, "predict", run.path)["predictions"]
    assert {one["given"] for one in held_out} <= {"red", "green", "blue", "yellow"}
    image = str(run.pictures / "red-left.png")
    [one] = answer(capsys, "predict", run.path, image, "--prompt", "a red box", "--prompt", "blue")["predictions"]
    assert set(one["probabilities"]) == {"a red box", "blue"}
    assert math.isclose(sum(one["probabilities"].values()), 1, rel_tol=1e-5)


def test_images_are_searched_by_a_text(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "embed", run.path, "--images", str(run.pictures), "--search", "red", "--top", "3")["found"]
    assert len(found) == 3
    assert found[0]["score"] >= found[2]["score"]
    [vector] = answer(capsys, "embed", run.path, "--text", "red")["vectors"]
    assert math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-4)


def test_look_shows_either_tower(run: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = str(tmp_path / "look.html")
    image = answer(capsys, "look", run.path, "--file", str(run.pictures / "red-left.png"), "--out", page)
    assert image["tokens"] == 4  # patches of 4 x 4 pixels
    text = answer(capsys, "look", run.path, "--text", "a red box", "--out", page)
    assert text["attentions"] == 1


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("predict", "RUN", "IMAGE"), "give two or more: --prompt"),
        (("predict", "RUN", "IMAGE", "--prompt", "red"), "one text leaves nothing to choose"),
        (("predict", "RUN", "IMAGE", "--prompt", "red", "--prompt", " "), "text 2 is empty"),
        (("embed", "RUN", "--images", "IMAGE", "--text", "red"), "not both"),
        (("evaluate", "RUN", "--source", "digits"), "has no images with texts"),
        (("evaluate", "RUN", "--part", "train"), "validation or test part"),
        (("generate", "RUN"), "generates nothing"),
        (("translate", "RUN", "red"), "does not translate"),
        (("export", "RUN", "OUT"), "two-towers"),
    ],
)
def test_what_it_cannot_do_is_said(
    run: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], match: str
) -> None:
    image = run.pictures / "red-left.png"
    names = {"RUN": run.path, "IMAGE": str(image), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in words]) == 2
    assert match in capsys.readouterr().err
