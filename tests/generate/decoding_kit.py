"""Random small GPTs, random ways to sample, and decoding by the definition: the full pass over the window each time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import torch

from regard.attention import SoftmaxConfig, WindowConfig
from regard.generate import Sampling
from regard.models import GPT, GPTConfig
from regard.nn.positions.position import LearnedPositionConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig

VOCABULARY = 11

seeds = st.integers(0, 2**63 - 1)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)


@st.composite
def models(draw: st.DrawFn) -> GPT:
    """Windows shorter than the context, which roll, grouped heads, n-grams, and every kind of position."""
    heads = draw(st.sampled_from([1, 2, 4]))
    config = GPTConfig(
        vocabulary=VOCABULARY,
        context=draw(st.sampled_from([24, 40, 9, 2, 1])),
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *(g for g in (1, 2) if heads % g == 0)])),
        width=16,
        ngrams=draw(st.integers(1, 3)),
        attention=draw(st.builds(WindowConfig, size=st.integers(1, 6)) | st.just(SoftmaxConfig())),
        global_every=draw(st.integers(0, 2)),
        zero_init=False,
        position=draw(
            st.sampled_from([RotaryConfig(), LearnedPositionConfig(), SinusoidalConfig(), NoPositionConfig()])
        ),
    )
    return wild(config, draw(seeds))


def wild(config: GPTConfig, seed: int) -> GPT:
    """Weights far from their start, so that a wrong memory changes the choice."""
    model = config.build().double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        around = 1.0 if name.endswith("gain") else 0.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = around + noise / parameter.shape[-1] ** 0.5
    return model


samplings = st.one_of(
    st.just(Sampling(temperature=0)),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        top_k=st.none() | st.integers(1, VOCABULARY + 2),
        top_p=st.sampled_from([1.0, 0.9, 0.3]),
        min_p=st.sampled_from([0.0, 0.05, 0.4]),
        repetition=st.sampled_from([1.0, 1.3, 0.8]),
    ),
)


def naive_shape(logits: list[float], seen: set[int], sampling: Sampling) -> np.ndarray:
    """The probabilities that are drawn from, token by token in float64. Temperature above zero."""
    scores = np.array(logits, dtype=np.float64)
    for token in seen:
        score = scores[token]
        scores[token] = score / sampling.repetition if score > 0 else score * sampling.repetition
    scores = scores / sampling.temperature
    if sampling.top_k is not None:
        least = sorted(scores, reverse=True)[min(sampling.top_k, len(scores)) - 1]
        scores[scores < least] = -np.inf
    mass, reached = naive_softmax(scores), 0.0
    for token in sorted(range(len(scores)), key=lambda token: -scores[token]):
        if reached >= sampling.top_p:
            scores[token] = -np.inf
        reached += mass[token]
    mass = naive_softmax(scores)
    scores[mass < sampling.min_p * mass.max()] = -np.inf
    return naive_softmax(scores)


def naive_softmax(scores: np.ndarray) -> np.ndarray:
    mass = np.exp(scores - scores.max())
    return mass / mass.sum()


def naive_decode(model: GPT, prompt: list[int], count: int, sampling: Sampling, seed: int, stream: int) -> list[int]:
    """One row alone, no memory: the definition."""
    context = model.config.context
    raw = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
    text, window = list(prompt), list(prompt)[-context:]
    for number in raw:
        if len(window) > context:
            window = window[-max(1, context // 2) :]
        logits = model(torch.tensor([window]))[0, -1].tolist()
        if sampling.temperature == 0:
            scores = [
                (x / sampling.repetition if x > 0 else x * sampling.repetition) if token in set(text) else x
                for token, x in enumerate(logits)
            ]
            token = int(np.argmax(scores))
        else:
            mass = naive_shape(logits, set(text), sampling)
            token = int(np.searchsorted(np.cumsum(mass), int(number >> 11) / 2**53, side="right"))
        text.append(token)
        window.append(token)
    return text[len(prompt) :]
