"""The laws of the encoder-decoder: a step is the full pass, no future, no padding, no neighbours."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from gpts import untouched
from hypothesis import given
from strategies import agree, examples, generator, seeds
from torch import Tensor
from transformers_kit import SOURCE_VOCABULARY, VOCABULARY, sources, targets, transformers, wild

from regard.generate.decoder import select_rows
from regard.look import attentions, dense_weights
from regard.models import Transformer, TransformerConfig

held = st.lists(st.integers(1, 9), min_size=1, max_size=3)  # the lengths of sources


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """How many tokens each step brings: one by one, a few, or many; more than the first buffers hold."""
    total = draw(st.sampled_from([20, 40, 9, 1]))
    sizes = draw(st.sampled_from([st.integers(1, 2), st.integers(1, 6), st.integers(17, 30)]))
    cut: list[int] = []
    while sum(cut) < total:
        cut.append(min(draw(sizes), total - sum(cut)))
    return cut


@examples(2)
@given(transformers(), seeds, held, cuts(), st.integers(1, 3), st.integers(0, 3))
def test_step_equals_the_full_pass(
    config: TransformerConfig, seed: int, lengths: list[int], cut: list[int], beams: int, more: int
) -> None:
    """With beams side by side, in steps of one or many tokens, whatever the model is made of."""
    model, batch, length = wild(config, seed), len(lengths), max(lengths) + more
    source, real = sources(batch, length, seed), torch.tensor(lengths)
    text = targets(batch * beams, sum(cut), seed)
    want = model(text, source.repeat_interleave(beams, 0), real.repeat_interleave(beams)).detach()
    state = model.start(batch, sum(cut), source=source, source_lengths=real, beams=beams)
    for i, piece in enumerate(text.split(cut, dim=1)):
        start = sum(cut[:i])
        logits, state = model.step(piece, state)
        agree(logits, want[:, start : start + piece.shape[1]], f"step {i}")


@given(transformers(), seeds, held, st.integers(1, 20), st.integers(1, 3), st.data())
def test_beams_are_chosen_by_their_own_rows_alone(
    config: TransformerConfig, seed: int, lengths: list[int], before: int, beams: int, data: st.DataObject
) -> None:
    """Rows of ``own`` follow the chosen beams; ``shared`` stays, and leaves with its sentence."""
    model, batch = wild(config, seed), len(lengths)
    source, real = sources(batch, max(lengths), seed), torch.tensor(lengths)
    text = targets(batch * beams, before, seed)
    state = model.start(batch, before + 4, source=source, source_lengths=real, beams=beams)
    _, state = model.step(text, state)
    stay = data.draw(st.lists(st.sampled_from(range(batch)), min_size=1, unique=True), label="sentences that stay")
    parents = [data.draw(st.integers(0, beams - 1), label="parent") for _ in range(len(stay) * beams)]
    chosen = torch.tensor([stay[i // beams] * beams + parent for i, parent in enumerate(parents)])
    state = state._replace(shared=select_rows(state.shared, torch.tensor(stay)), own=select_rows(state.own, chosen))
    new = targets(len(chosen), 4, seed + 1)
    got = []
    for piece in new.split([1, 2, 1], dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    rows = torch.tensor(stay).repeat_interleave(beams)
    want = model(torch.cat((text[chosen], new), dim=1), source[rows], real[rows]).detach()
    agree(torch.cat(got, dim=1), want[:, before:], "after the choice")


def gradients(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


@examples(2)
@given(transformers(), seeds, held, st.integers(1, 8), st.integers(0, 4))
def test_a_batch_is_its_sentences(
    config: TransformerConfig, seed: int, lengths: list[int], length: int, more: int
) -> None:
    """Padding and neighbours change neither logits nor the gradient of any weight."""
    model, batch = wild(config, seed), len(lengths)
    source, text = sources(batch, max(lengths) + more, seed), targets(batch, length, seed)
    together = model(text, source, torch.tensor(lengths))
    alone = torch.cat([model(text[b : b + 1], source[b : b + 1, :n], torch.tensor([n])) for b, n in enumerate(lengths)])
    agree(together.detach(), alone.detach(), "logits")
    up = torch.randn(together.shape, generator=generator(seed), dtype=together.dtype)
    got, want = gradients(model, (together * up).sum()), gradients(model, (alone * up).sum())
    for name in want:
        agree(got[name], want[name], f"gradient of {name}")


@given(transformers(), seeds, held, st.integers(1, 4))
def test_what_stands_in_the_padding_changes_nothing(
    config: TransformerConfig, seed: int, lengths: list[int], more: int
) -> None:
    model, batch = wild(config, seed), len(lengths)
    source, text = sources(batch, max(lengths) + more, seed), targets(batch, 5, seed)
    real = torch.tensor(lengths)
    padding = torch.arange(source.shape[1]) >= real[:, None]
    other = torch.where(padding, (source + 1) % SOURCE_VOCABULARY, source)
    untouched(config.feedforward, model(text, other, real), model(text, source, real))
    caught = []
    hook = model.embed_source.register_forward_hook(lambda _, __, out: caught.append(out))
    logits = model(text, source, real)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits.sum(), caught)
    assert not gradient[padding].any()
    assert gradient[~padding].any()


@given(transformers(), seeds, st.integers(2, 12), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_the_decoder_does_not_see_the_future(
    config: TransformerConfig, seed: int, length: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    """By change, to the bit, and by gradient."""
    model = wild(config, seed, dtype)
    source, real, text = sources(2, 6, seed), torch.tensor([6, 3]), targets(2, length, seed)
    cut = data.draw(st.integers(1, length - 1), label="cut")
    other = text.clone()
    other[:, cut:] = (other[:, cut:] + 1) % VOCABULARY
    untouched(config.feedforward, model(other, source, real)[:, :cut], model(text, source, real)[:, :cut])
    caught = []
    hook = model.embed.register_forward_hook(lambda _, __, out: caught.append(out))
    logits = model(text, source, real)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, :cut].sum(), caught)
    assert not gradient[:, cut:].any()
    assert gradient.isfinite().all()


@given(transformers(), seeds, held, st.integers(1, 3), st.integers(1, 2))
def test_no_weight_falls_on_padding(
    config: TransformerConfig, seed: int, lengths: list[int], more: int, beams: int
) -> None:
    """In every attention over the source, seen as `look` sees it: while training and, by beams, while decoding."""
    model, batch = wild(config, seed), len(lengths)
    real, source = torch.tensor(lengths), sources(batch, max(lengths) + more, seed)
    padding = (torch.arange(source.shape[1]) >= real[:, None])[:, None, None]

    def train_and_decode() -> None:
        model(targets(batch, 4, seed), source, real)
        state = model.start(batch, 4, source=source, source_lengths=real, beams=beams)
        model.step(targets(batch * beams, 2, seed), state)

    seen = [a for a in attentions(model, train_and_decode) if "cross" in a.name or "encoder" in a.name]
    assert len(seen) == 2 * (config.layers + config.depth)
    for attention in seen:
        weights = dense_weights(attention)
        assert not weights.masked_select(padding).any()
        if "cross" in attention.name:
            agree(weights.sum(-1), torch.ones_like(weights[..., 0]), "a row sums to one")
