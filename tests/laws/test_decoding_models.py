"""Every registered language model decodes a file of prompts with few rows as it decodes each prompt alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_kit import DECODABLE, build, kinds_of

from regard.data.tokenizers import Characters
from regard.generate import Prompt, Sampling, TextGenerator
from regard.models import LanguageModel

LANGUAGE = [name for name in kinds_of(LanguageModel) if name in DECODABLE]


@pytest.mark.parametrize("name", LANGUAGE)
def test_rows_that_are_taken_over_keep_nothing_of_the_text_before(name: str) -> None:
    """KV caches, windows, recurrent and state-space models, convolutions, a model from outside the package."""
    model = build(name).eval()
    size = model.config.vocabulary
    draws = torch.Generator().manual_seed(3)
    lengths = [1, *torch.randint(1, model.config.context + 1, (7,), generator=draws).tolist()]
    texts = [torch.randint(size, (n,), generator=draws).tolist() for n in lengths]
    prompts = [Prompt(tuple(text), stream) for stream, text in enumerate(texts)]
    characters = Characters("".join(map(chr, range(97, 97 + size))))
    generator = TextGenerator(model, characters, Sampling(1.5), model.config.context + 10, stops=("b", "c", "dd"))
    together = [text.text for text in replace(generator, batch=3).texts(prompts)]
    assert len({len(text) for text in together}) > 1
    assert together == [generator.texts([prompt])[0].text for prompt in prompts]
