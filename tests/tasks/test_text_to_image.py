"""Text to image: targets follow their inputs, codes pass gradients through, and a small model learns both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.data import ImagesConfig, ScenesConfig
from regard.data.base import IGNORE_INDEX
from regard.errors import UserError
from regard.generate import Sampling
from regard.generate.pictures import pictures
from regard.models import TextToImage, TextToImageConfig
from regard.nn.codebook import Codebook
from regard.parallel.apply import parallelize
from regard.parallel.world import World
from regard.tasks import TextToImageTaskConfig
from regard.tasks.text_to_image import _order

CONFIG = TextToImageConfig(layers=2, heads=2, width=32, codes=32, vocabulary=71, coder_width=32)


def test_quantization_takes_the_nearest_code_and_passes_gradients_through() -> None:
    book = Codebook(5, 3).double().eval()
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    found = book(x)
    distances = (x[:, :, None] - book.table.weight).square().sum(-1)
    assert torch.equal(found.codes, distances.argmin(-1))
    torch.testing.assert_close(found.vectors, book.table(found.codes))
    weights = torch.randn_like(found.vectors)
    (gradient,) = torch.autograd.grad((found.vectors * weights).sum(), x, retain_graph=True)
    torch.testing.assert_close(gradient, weights)  # equation of the straight-through estimator
    of_x, of_codes = torch.autograd.grad(found.loss.sum(), (x, book.table.weight))
    chosen = book.table(found.codes)
    torch.testing.assert_close(of_x, 0.25 * 2 * (x - chosen) / 3)
    expected = torch.zeros_like(book.table.weight).index_add(
        0, found.codes.flatten(), (2 * (chosen - x) / 3).flatten(0, 1)
    )
    torch.testing.assert_close(of_codes, expected)


def test_codes_that_nothing_uses_move_to_inputs_in_training_only() -> None:
    torch.manual_seed(2)
    book, x = Codebook(8, 2, patience=3), torch.randn(50, 2) + 10  # all near one code
    used = [len(set(book(x).codes.tolist())) for _ in range(2)]
    before = book.table.weight.clone()
    assert torch.equal(before, book.table.weight)
    for _ in range(8):
        book(x)
    assert len(set(book(x).codes.tolist())) > 2 * max(used)
    moved = book.table.weight.clone()
    book.eval()
    for _ in range(8):
        book(x)
    assert torch.equal(book.table.weight, moved)


def test_a_codebook_is_refused_on_several_processes() -> None:
    with pytest.raises(UserError, match=r"book, a Codebook, changes its weights .* one process"):
        parallelize(CONFIG.build(), World(0, 2))


def test_targets_follow_their_inputs() -> None:
    given, wanted = torch.tensor([[1, 2, 3]]), torch.tensor([[7, 8]])
    inputs, targets = _order(given, wanted)
    assert inputs.tolist() == [[1, 2, 3, 7]]
    assert targets.tolist() == [[IGNORE_INDEX, IGNORE_INDEX, 7, 8]]


def test_codes_of_inputs_that_have_one_of_their_own_stay() -> None:
    """Otherwise a code that nothing uses would be moved onto an input again and again, and take it over."""
    torch.manual_seed(1)
    book = Codebook(8, 2, patience=3)
    x = torch.eye(2)[torch.arange(40) % 2] * 5  # two different inputs for eight codes
    book.table.weight.data[:2] = 5 * torch.eye(2) + 0.1
    before = book(x).codes
    for _ in range(12):
        assert torch.equal(book(x).codes, before)


def test_the_codes_of_forms_do_not_depend_on_colors() -> None:
    """A digit in a color that it never had is made of codes that are known."""
    torch.manual_seed(1)
    coder = CONFIG.build().coder.double().eval()
    data = ScenesConfig(scenes=8).build(0)
    images = data.part_batch("train", np.arange(8)).inputs.double()
    colors, forms = coder.encode(images).split((CONFIG.regions, CONFIG.side**2), 1)
    others, same = coder.encode(images.flip(1)).split((CONFIG.regions, CONFIG.side**2), 1)
    assert torch.equal(forms, same)
    assert not torch.equal(colors, others)
    darker, _ = coder.encode((images + 1) / 2 - 1).split((CONFIG.regions, CONFIG.side**2), 1)
    assert (colors == darker).double().mean() > 0.9  # the color of a region is relative to its brightness


def test_a_code_of_the_wrong_kind_is_read_as_the_first_of_the_right_kind() -> None:
    coder = CONFIG.build().coder.eval()
    right = torch.tensor([[0] * CONFIG.regions + [CONFIG.colors] * CONFIG.side**2])
    wrong = torch.tensor([[CONFIG.colors + 3] * CONFIG.regions + [2] * CONFIG.side**2])
    torch.testing.assert_close(coder.decode(wrong), coder.decode(right))


def small() -> tuple[TextToImage, object, object]:
    data = ScenesConfig(scenes=8).build(0)
    torch.manual_seed(1)
    model = TextToImageTaskConfig().fit(data).model_for(CONFIG.reading(data.vocabulary, data.shape), data).build()
    assert isinstance(model, TextToImage)
    return model, TextToImageTaskConfig().build(), data


def test_a_small_model_learns_to_draw_and_to_caption_a_few_scenes() -> None:
    model, task, data = small()
    batch = data.part_batch("train", np.arange(4))  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(150):
        terms = task.terms(model, batch)  # type: ignore[attr-defined]
        assert {name: float(term.count) for name, term in terms.items()} == {
            name: float(count)
            for name, count in task.counts(batch).items()  # type: ignore[attr-defined]
        }
        loss = sum(term.weight * term.total / term.count for term in terms.values())
        optimizer.zero_grad()
        torch.as_tensor(loss).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        _, sums = task.measured(model, batch)  # type: ignore[attr-defined]
        answers = task.predictions(model, batch)  # type: ignore[attr-defined]
        drawn, tokens = pictures(model, batch.prompts.tolist(), Sampling(temperature=0)), batch.prompts
        words = model.config.words
        for _ in range(model.config.length):  # greedy decoding without a cache
            tokens = torch.cat((tokens, model(tokens)[:, -1:, words:].argmax(-1) + words), dim=1)
        expected = model.coder.decode(tokens[:, batch.prompts.shape[1] :] - words)
        again = model.coder.decode(model.coder.encode(batch.inputs))
    metrics = task.metrics(sums)  # type: ignore[attr-defined]
    captions = [str(data.caption("train", number)) for number in range(4)]  # type: ignore[attr-defined]
    assert metrics["caption_exact"] == 1  # by teacher forcing, which equals greedy decoding:
    assert [answer.record["caption"] for answer in answers] == captions
    torch.testing.assert_close(drawn, ((expected + 1) * 127.5).round().clamp(0, 255).to(torch.uint8), atol=1, rtol=0)
    assert metrics["pixel_error"] == pytest.approx(float(F.mse_loss(again, batch.inputs)), rel=1e-4)


def test_a_picture_does_not_depend_on_its_batch() -> None:
    model, _, data = small()
    model.eval()
    prompts = data.part_batch("test", np.arange(5)).prompts.tolist()  # type: ignore[attr-defined]
    together = pictures(model, prompts, Sampling(1.0), seed=3)
    assert torch.equal(pictures(model, prompts[:2], Sampling(1.0), seed=3), together[:2])
    assert not torch.equal(pictures(model, prompts, Sampling(1.0), seed=4), together)


def test_impossible_sizes_and_other_data_are_refused() -> None:
    for change, problem in (({"vocabulary": 512, "codes": 512}, "no words"), ({"context": 40}, "no room")):
        with pytest.raises(UserError, match=problem):
            replace(TextToImageConfig(), **change).build()
    with pytest.raises(UserError, match="--data scenes"):
        TextToImageConfig().reading(65, None)
    with pytest.raises(UserError, match="--data scenes"):
        TextToImageTaskConfig().fit(ImagesConfig().build(0))
