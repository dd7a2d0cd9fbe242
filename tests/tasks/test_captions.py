"""Captions: targets, examples in a text, what is measured; matching; and both on the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from regard.cli import main
from regard.data import ImagesConfig, ImageTextBatch, ImageTextConfig, ScenesConfig
from regard.data.base import IGNORE_INDEX
from regard.data.imagetext.captioned import Captioned, ImageTexts, Prompts
from regard.errors import UserError
from regard.models import Captioner, CaptionerConfig, ViTConfig
from regard.nn.blocks.block import GatedCrossConfig
from regard.prove.reduced import randomize_weights
from regard.tasks import CaptionsConfig, MatchingConfig
from regard.tasks.captions import interleaved, written

sys.path.append(str(Path(__file__).parents[1] / "data"))
from imagetext_kit import folder

MARKS = (8, 9)
VIT = ViTConfig(image=8, patch=4, layers=1, heads=2, width=16, class_token=False)
MODEL = CaptionerConfig(layers=1, heads=2, width=16, encoder=VIT)


def pairs_of(lengths: list[int], seed: int = 1) -> ImageTextBatch:
    """Images that are filled with their number, and captions of these lengths."""
    rows, generator = len(lengths), torch.Generator().manual_seed(seed)
    images = torch.arange(rows, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 8, 8)
    tokens = torch.randint(1, 8, (rows, 4), generator=generator)
    return ImageTextBatch(images, torch.zeros(rows, 1).long(), tokens, torch.tensor(lengths))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 8))
def test_each_caption_follows_its_image_and_counts_once(lengths: list[int], pairs: int, shift: int) -> None:
    batch = pairs_of(lengths)
    found = interleaved(batch, pairs, MARKS, shift)
    assert batch.tokens is not None
    counted = []
    for inputs, targets, images in zip(found.inputs.tolist(), found.targets.tolist(), found.source, strict=True):
        place = 0
        for image in images[:, 0, 0, 0].int().tolist():
            words = batch.tokens[image, : lengths[image]].tolist()
            text = [MARKS[0], *words, MARKS[1]]
            assert inputs[place : place + len(text)] == text[: len(inputs) - place]
            targets_here = targets[place : place + len(text) - 1]
            if targets_here != [IGNORE_INDEX] * len(targets_here):
                assert targets_here == text[1:]
                counted.append(image)
            place += len(text)
        assert set(targets[place - 1 :]) <= {IGNORE_INDEX}
    assert sorted(counted) == list(range(len(lengths)))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=7), st.integers(1, 3))
@torch.no_grad()
def test_measures_are_those_of_each_caption_alone(lengths: list[int], pairs: int) -> None:
    """Every caption after each number of examples, from logits of its text alone and from greedy decoding."""
    batch = pairs_of(lengths)
    model = randomize_weights(replace(MODEL, vocabulary=10).build()).eval()
    task = CaptionsConfig(pairs=pairs).build()
    terms, sums = task.measured(model, batch)
    assert int(terms["caption"].count) == int(task.counts(batch)["caption"]) == sum(lengths) + len(lengths)
    total, right = np.zeros(pairs), np.zeros(pairs)
    for shift in range(pairs):
        texts = interleaved(batch, pairs, MARKS, shift)
        for inputs, targets, images, count in zip(texts.inputs, texts.targets, texts.source, texts.counts, strict=True):
            logits = model(inputs[None], images[None], count[None])[0]
            own = (inputs == MARKS[0]).cumsum(0) - 1
            for number in range(len(images)):
                here = (own == number) & (targets != IGNORE_INDEX)
                if here.any():
                    total[number] += float(F.cross_entropy(logits[here], targets[here], reduction="sum"))
                    right[number] += bool((logits[here].argmax(-1) == targets[here]).all())
    np.testing.assert_allclose(sums.view(pairs, 4)[:, 2], total, rtol=1e-4)
    np.testing.assert_array_equal(sums.view(pairs, 4)[:, 0], right)
    if pairs == 1:
        rows = zip(written(model, batch.inputs), batch.tokens, lengths, strict=True)  # type: ignore[arg-type]
        assert right[0] == sum(row == tokens[:length].tolist() for row, tokens, length in rows)


def test_hidden_words_are_hidden_in_training_only() -> None:
    model, batch = replace(MODEL, vocabulary=10).build(), pairs_of([4] * 50)
    task = CaptionsConfig(pairs=1, word_dropout=0.5).build()
    plain = interleaved(batch, 1, MARKS)
    seen = task._texts(model.train(), batch)
    assert torch.equal(seen.targets, plain.targets)
    assert bool((seen.inputs[:, 0] == MARKS[0]).all())
    assert 0.3 < float((seen.inputs != plain.inputs).float()[:, 1:].mean()) < 0.7
    assert torch.equal(task._texts(model.eval(), batch).inputs, plain.inputs)


def test_a_small_captioner_learns_a_few_scenes() -> None:
    data = ScenesConfig(scenes=8).build(0)
    torch.manual_seed(1)
    task = CaptionsConfig(words=0.5)
    config = task.fit(data).model_for(
        replace(
            MODEL, width=32, zero_init=False, block=GatedCrossConfig(gate=1.0), encoder=replace(VIT, width=32, patch=8)
        ).reading(31, (3, 24, 24)),
        data,
    )
    assert (config.vocabulary, config.context, config.tokenized) == (33, 10, False)
    model, batch = config.build(), data.part_batch("train", np.arange(4))
    assert isinstance(model, Captioner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(130):
        terms = task.build().terms(model, batch)
        assert {name: int(term.count) for name, term in terms.items()} == {
            name: int(count) for name, count in task.build().counts(batch).items()
        }
        optimizer.zero_grad()
        sum(term.weight * term.total / term.count for term in terms.values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    answers = task.build().predictions(model.eval(), batch)
    assert [one.line for one in answers] == [str(data.caption("train", number)) for number in range(4)]


def test_recolored_scenes_keep_their_shapes_and_hide_their_colors() -> None:
    plain, found = (ScenesConfig(scenes=20, recolor=share).build(0).batch(0, seed=1, size=20) for share in (0.0, 0.5))
    changed = ((found.inputs - plain.inputs).abs() > 0.01).flatten(1).any(1)
    assert 4 <= int(changed.sum()) <= 16
    for one, other in zip(found.inputs[changed], plain.inputs[changed], strict=True):
        assert torch.equal(one.amax(0) > -0.99, other.amax(0) > -0.99)  # the same ink
    unknown = found.captions != plain.captions
    assert torch.equal(unknown, changed[:, None] & (plain.captions >= 3) & (plain.captions <= 6))
    text = interleaved(found, 1, MARKS)
    assert int((text.targets != IGNORE_INDEX).sum()) == int(CaptionsConfig().build().counts(found)["caption"])
    assert not bool(((text.inputs >= 3) & (text.inputs <= 6))[changed].any())


def test_successive_texts_are_in_one_language_and_without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Captioned(str(n), (n,), {"en": [f"a{n}", "tag"], "de": [f"b{n}"]}, str(n), 0) for n in range(10)]
    prompts = {language: Prompts((), ()) for language in ("en", "de")}
    texts = ImageTexts(np.zeros((10, 3, 8, 8), np.uint8), tuple(names), ("things",), prompts)
    monkeypatch.setattr(ImageTextConfig, "read", lambda self, cache=None: texts)
    config = ImageTextConfig(languages=("en", "de"), tags=False, alike=4, validation=0.0, test=0.0, size=8)
    data, seen = config.build(0), set()
    for step in range(9):
        batch = data.batch(step, seed=1, size=8)
        assert batch.tokens is not None
        assert batch.lengths is not None
        rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
        read = [data.rows.tokenizer.decode(row[:length]) for row, length in rows]
        assert all("tag" not in text for text in read)
        languages = ["".join(text[0] for text in read[start : start + 4]) for start in (0, 4)]
        assert set(languages) <= {"aaaa", "bbbb"}
        seen |= set(languages)
    assert len(seen) == 2


def test_other_data_and_impossible_values_are_refused() -> None:
    for config in (CaptionsConfig(), MatchingConfig()):
        with pytest.raises(UserError, match="--data"):
            config.fit(ImagesConfig().build(0))
    changes: list[dict[str, Any]] = [{"pairs": 0}, {"words": -1.0}, {"word_dropout": 1.0}, {"smoothing": -0.1}]
    for change in changes:
        with pytest.raises(ValueError, match=next(iter(change))):
            CaptionsConfig(**change).check()


SMALL = ["--model.width=16", "--model.layers=1", "--model.heads=2", "--train.device=cpu", "--train.seconds=none"]
SMALL += ["--train.steps=3", "--train.evaluate_every=3", "--data.size=8", "--data.validation=0.2", "--data.test=0.2"]
SMALL += ["--data.tokenizer.vocabulary=300", "--data.languages=en"]


@pytest.mark.parametrize("recipe", ["emoji-caption", "emoji-match"])
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: str) -> None:
    pictures, run = folder(tmp_path / "boxes", classes=False), str(tmp_path / "run")
    encoder = ["--model.encoder.width=16", "--model.encoder.encoder.width=16", "--model.encoder.latents=3"]
    more = encoder if recipe == "emoji-caption" else []
    assert (
        main(["train", recipe, "--data.path", str(pictures), *SMALL, *more, "--runs", str(tmp_path), "--name", "run"])
        == 0
    )
    capsys.readouterr()

    def answer(*words: str) -> dict:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found, image = answer("evaluate", run, "--part", "test"), str(pictures / "red-left.png")
    page = ["--out", str(tmp_path / "look.html")]
    if recipe == "emoji-caption":
        assert {"caption_exact", "exact_after_0", "token_loss_after_4"} <= found.keys()
        [one] = answer("predict", run, image)["predictions"]
        assert isinstance(one["caption"], str)
        assert answer("look", run, "--file", image, *page)["attentions"] == 2  # the text's own, and to the latents
        assert answer("look", run, "--text", "red", *page)["attentions"] == 1  # of the language model alone
    else:
        assert {"matched", "first_of_10"} <= found.keys()
        [one] = answer("predict", run, image, "--prompt", "a red box", "--prompt", "blue")["predictions"]
        assert set(one["probabilities"]) == {"a red box", "blue"}
        assert answer("look", run, "--file", image, *page)["attentions"] == 1
