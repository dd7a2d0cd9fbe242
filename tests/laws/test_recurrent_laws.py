"""Recurrent and convolutional models keep the laws of the GPT: blind to the future, and to how texts share a batch."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from strategies import agree, documents, examples, generator, seeds
from torch import Tensor

from regard.attention import Packed, Padded, Range
from regard.models import Convolution, ConvolutionConfig, RecurrentConfig, RecurrentModel
from regard.nn.norm import LayerNormConfig, NoNormConfig, RMSNormConfig

VOCABULARY = 7
Config = RecurrentConfig | ConvolutionConfig
Model = RecurrentModel | Convolution

norms = st.sampled_from([RMSNormConfig(), LayerNormConfig(), NoNormConfig()])
recurrent = st.builds(
    RecurrentConfig,
    cell=st.sampled_from(["rnn", "lstm", "gru"]),
    vocabulary=st.just(VOCABULARY),
    layers=st.integers(1, 3),
    width=st.sampled_from([4, 8]),
    tied=st.booleans(),
    bias=st.booleans(),
    residual=st.booleans(),
    norm=norms,
)
convolution = st.builds(
    ConvolutionConfig,
    vocabulary=st.just(VOCABULARY),
    layers=st.integers(1, 4),
    width=st.sampled_from([4, 8]),
    kernel=st.integers(1, 3),
    cycle=st.integers(1, 3),
    unit=st.sampled_from(["gated", "relu2"]),
    ratio=st.sampled_from([1.0, 1.5]),
    tied=st.booleans(),
    bias=st.booleans(),
    norm=norms,
)
configs = recurrent | convolution


def wild(config: Config, seed: int) -> Model:
    """With random weights everywhere, none of them zero."""
    model, g = config.build().double(), generator(seed)
    for name, parameter in model.named_parameters():
        spread = 0.7 / parameter.shape[-1] ** 0.5 if "weight" in name else 0.2
        around = 1.0 if name.endswith("gain") else 0.0
        parameter.data.copy_(around + spread * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return model.eval()


def tokens(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator(seed))


def gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


@examples(2)
@given(configs, seeds, st.integers(1, 3), st.integers(2, 20), st.data())
def test_the_future_does_not_matter(config: Config, seed: int, rows: int, length: int, data: st.DataObject) -> None:
    """Changing it changes nothing, to the bit, and its gradient is exactly zero."""
    model, text = wild(config, seed), tokens(rows, length, seed)
    cut = data.draw(st.integers(1, length - 1), label="cut")
    kinds = [None, Range(length), Padded(torch.full((rows,), length), length), Packed.of([[cut, length - cut]] * rows)]
    slots = data.draw(st.sampled_from(kinds), label="slots")
    other = text.clone()
    other[:, cut:] = (other[:, cut:] + 1) % VOCABULARY
    assert torch.equal(model(other, slots)[:, :cut], model(text, slots)[:, :cut])
    if isinstance(slots, Packed):  # embedded in rows of their own
        return
    caught: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out)
    logits = model(text, slots)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, cut - 1].sum(), caught)
    assert not gradient[:, cut:].any()
    assert gradient[:, cut - 1].any()


def same_as_alone(model: Model, together: Tensor, spans: list[tuple[int, int, int]], text: Tensor, seed: int) -> None:
    """``spans`` say where each text lies in the batch: row, start, stop. Logits and all gradients agree."""
    got = torch.cat([together[b, start:stop] for b, start, stop in spans])
    want = torch.cat([model(text[b, start:stop][None])[0] for b, start, stop in spans])
    agree(got.detach(), want.detach(), "logits")
    up = torch.randn(want.shape, generator=generator(seed), dtype=want.dtype)
    ours, lone = gradients(model, (got * up).sum()), gradients(model, (want * up).sum())
    for name in lone:
        agree(ours[name], lone[name], f"gradient of {name}")


@given(configs, seeds, st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(0, 4))
def test_padded_equals_unpadded(config: Config, seed: int, held: list[int], more: int) -> None:
    assume(sum(held))
    model, length = wild(config, seed), max(held) + more
    text = tokens(len(held), length, seed)
    spans = [(b, 0, n) for b, n in enumerate(held) if n]
    same_as_alone(model, model(text, Padded(torch.tensor(held), length)), spans, text, seed)


@given(configs, seeds, st.lists(documents(24), min_size=1, max_size=3), st.integers(0, 4), st.booleans())
def test_packed_equals_separate(
    config: Config, seed: int, rows: list[tuple[int, ...]], more: int, on_host: bool
) -> None:
    assume(any(rows))
    model, length = wild(config, seed), max(map(sum, rows)) + more
    slots, text = Packed.of(rows, length), tokens(len(rows), length, seed)
    spans = [(b, sum(row[:i]), sum(row[: i + 1])) for b, row in enumerate(rows) for i in range(len(row))]
    same_as_alone(model, model(text, slots if on_host else slots._replace(documents=None)), spans, text, seed)


@examples(2)
@given(configs, seeds, st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 3), st.booleans(), st.data())
def test_steps_equal_the_full_pass(
    config: Config, seed: int, cut: list[int], rows: int, ragged: bool, data: st.DataObject
) -> None:
    """However a text is cut; ragged, each row brings as many tokens to a step as it likes, none too."""
    model: Any = wild(config, seed)
    state = model.start(rows, sum(cut))
    real, got = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for i, count in enumerate(cut):
        held = [count] * rows
        if ragged:
            held = data.draw(st.lists(st.integers(0, count), min_size=rows, max_size=rows), label=f"lengths {i}")
        new, last = tokens(rows, count, seed + i), data.draw(st.booleans(), label="last")
        before = [tensor.data_ptr() for tensor in tensors(state)]
        logits, state = model.step(new, state, torch.tensor(held) if ragged else None, last=last)
        assert [tensor.data_ptr() for tensor in tensors(state)] == before
        assert logits.shape[1] == (1 if last else count)
        for b, n in enumerate(held):
            real[b].append(new[b, :n])
            end = len(torch.cat(real[b]))
            if n and last:
                got[b].append((end - 1, logits[b, 0]))
            elif n:
                got[b] += zip(range(end - n, end), logits[b, :n], strict=True)
    assert state.used == sum(cut)
    for b in range(rows):
        text = torch.cat(real[b])[None]
        if text.shape[1]:
            whole = model(text)[0].detach()
            for place, logits in got[b]:
                agree(logits, whole[place], f"row {b}, place {place}")


def tensors(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state] if state.numel() else []
    return [tensor for part in state for tensor in tensors(part)] if isinstance(state, tuple) else []


@given(convolution, seeds)
def test_a_convolution_sees_its_receptive_field_and_no_more(config: ConvolutionConfig, seed: int) -> None:
    model, field = wild(config, seed), config.receptive_field
    caught: list[Tensor] = []
    model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out)
    logits = model(tokens(1, field + 3, seed))
    (gradient,) = torch.autograd.grad(logits[0, -1, 0], caught)
    assert not gradient[0, :3].any()
    if config.unit == "gated":  # a squared ReLU may be shut
        assert gradient[0, 3].any()
