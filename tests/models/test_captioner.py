"""Laws of captioners: closed gates, which image a token sees, decoding with a cache and with beams."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from regard.attention import WindowConfig
from regard.errors import UserError
from regard.generate import Sampling, decode_seq2seq
from regard.generate.constraints import OutputConstraints
from regard.models import GPT, Captioner, CaptionerConfig, GPTConfig, PerceiverConfig, ViTConfig
from regard.prove.reduced import randomize_weights
from regard.tasks.captions import written

IMAGES = ViTConfig(image=6, channels=2, patch=3, width=16, layers=1, heads=2, class_token=False)
RESAMPLED = PerceiverConfig(encoder=IMAGES, width=16, layers=1, reads_first=1, heads=2, latents=3)
CONFIG = CaptionerConfig(vocabulary=12, context=24, width=16, layers=2, heads=2, encoder=IMAGES)
MARK, END = CONFIG.image_mark, CONFIG.end_mark


def captioner(config: CaptionerConfig = CONFIG) -> Captioner:
    return randomize_weights(config.make()).double().eval()


def batch(rows: int = 3, images: int = 3, length: int = 14, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """Texts with marks at random places, after one at the first; images, and how many of them are real."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(MARK, (rows, length), generator=generator)
    marks = torch.rand(rows, length, generator=generator) < 0.2
    tokens = tokens.masked_fill(marks, MARK)
    tokens[:, 0] = MARK
    pictures = torch.randn(rows, images, 2, 6, 6, generator=generator, dtype=torch.float64)
    return tokens, pictures, torch.randint(1, images + 1, (rows,), generator=generator)


@torch.no_grad()
def test_with_closed_gates_it_is_the_language_model_to_the_bit() -> None:
    model, inputs = captioner(), batch()
    names = {field.name for field in fields(GPTConfig)} - {"block"}
    plain = GPT(GPTConfig(**{name: getattr(CONFIG, name) for name in names})).double().eval()
    plain.load_state_dict({name: weight for name, weight in model.decoder.state_dict().items() if _in_plain(name)})
    assert not torch.equal(model(*inputs), plain(inputs[0]))
    for gates in gates_of(model):
        gates.zero_()
    assert torch.equal(model(*inputs), plain(inputs[0]))


@torch.no_grad()
def test_words_that_are_predicted_independently_do_not_matter() -> None:
    model, (tokens, *images) = captioner(replace(CONFIG, autoregressive=False)), batch()
    other = torch.where(tokens == MARK, tokens, (tokens + 1) % MARK)
    assert torch.equal(model(tokens, *images), model(other, *images))
    assert not torch.equal(captioner()(tokens, *images), captioner()(other, *images))
    state, steps = model.start(len(tokens), tokens.shape[1], source=images[0], source_lengths=images[1]), []
    for one in tokens.split(1, 1):
        logits, state = model.step(one, state)
        steps.append(logits)
    assert torch.allclose(torch.cat(steps, 1), model(tokens, *images), atol=1e-10)


def gates_of(model: Captioner) -> list[torch.nn.Parameter]:
    return [weight for name, weight in model.named_parameters() if name.endswith("gates")]


def _in_plain(name: str) -> bool:
    return not any(part in name for part in ("cross", "dense", "gates"))


def test_a_new_captioner_has_closed_gates_that_learn() -> None:
    model = CONFIG.make().double()
    F.cross_entropy(model(*batch()).mT, batch()[0]).backward()
    for gates in gates_of(model):
        assert torch.equal(gates, torch.zeros(2, dtype=torch.float64))
        assert gates.grad is not None
        assert bool(gates.grad.abs().min() > 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99))
@torch.no_grad()
def test_a_token_sees_the_latest_image_and_no_other(seed: int) -> None:
    """The cross-attention of the first layer alone: deeper ones see earlier images through earlier tokens."""
    model = captioner(replace(CONFIG, layers=1))
    tokens, images, counts = batch(seed=seed)
    other = images.clone()
    other[:, 1] += 1
    across, seen = model.decoder.blocks.layers[0].cross, []
    assert across is not None
    hook = across.register_forward_hook(lambda _, __, output: seen.append(output))
    for pictures in (images, other):
        model(tokens, pictures, counts)
    hook.remove()
    changed = (seen[0] != seen[1]).any(-1)
    expected = (model.image_of(tokens) == 1) & (counts > 1)[:, None]
    assert torch.equal(changed, expected)
    beyond = model.image_of(tokens) >= counts[:, None]  # a mark without an image: nothing is seen
    bias = 0 if across.out.bias is None else across.out.bias
    assert bool((seen[0][beyond] == bias).all())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([1, 3]), st.booleans())
@torch.no_grad()
def test_steps_with_a_cache_equal_the_whole_text(seed: int, pieces: list[int], beams: int, resampled: bool) -> None:
    model = captioner(replace(CONFIG, encoder=RESAMPLED) if resampled else CONFIG)
    _, images, counts = batch(length=sum(pieces), seed=seed)
    rows = torch.cat([batch(length=sum(pieces), seed=seed + number)[0] for number in range(beams)])
    rows = rows.view(beams, 3, -1).transpose(0, 1).flatten(0, 1)  # the beams of a text are adjacent
    each = torch.arange(3).repeat_interleave(beams)
    state, found = model.start(3, sum(pieces), source=images, source_lengths=counts, beams=beams), []
    for piece in rows.split(pieces, dim=1):
        logits, state = model.step(piece, state)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), model(rows, images[each], counts[each]), rtol=0, atol=1e-10)


@torch.no_grad()
def test_captions_are_those_of_the_decoder_and_of_a_loop_without_a_cache() -> None:
    model, images = captioner(), batch(rows=5)[1][:, 0]
    one = torch.ones(5, dtype=torch.long)
    constraints = OutputConstraints(23, prefix=(MARK,), end=END, forbidden=(MARK,))
    decoded = decode_seq2seq(model, images[:, None], one, constraints, Sampling(temperature=0.0))
    rows = torch.full((5, 1), MARK)
    for _ in range(23):
        logits = model(rows, images[:, None], one)[:, -1]
        logits[:, MARK] = -torch.inf
        rows = torch.cat((rows, logits.argmax(-1)[:, None]), dim=1)
    plain = [row[1 : row.index(END)] if END in row else row[1:] for row in rows.tolist()]
    assert written(model, images) == plain == [found[0].tokens for found in decoded]
    assert len(set(map(tuple, plain))) > 1


def test_impossible_parts_are_refused() -> None:
    for change, problem in (
        ({"attention": WindowConfig(4)}, "masks"),
        ({"width": 32}, "encoder.width"),
        ({"encoder": GPTConfig(width=16)}, "no images"),
    ):
        with pytest.raises(UserError, match=problem):
            replace(CONFIG, **change).build()
