"""How `prove` calls each group of models of `transformers`: causal, masked, encoder-decoder, image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UserError
from regard.prove import Certificate, ModelUnderTest, certify
from regard.prove.foreign import CLAIMS, TransformersAdapter, logits_of

CACHES = ("past_key_values", "cache_params", "state", "mems")
SOURCE = 11  # tokens of the fixed source of an encoder-decoder


class CausalAdapter(TransformersAdapter):
    """A language model, whatever it calls its cache."""

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        given = {} if state is None else state
        assert isinstance(given, dict)
        out = self.module(input_ids=tokens + self.first, use_cache=True, **given)
        found = {name: value for name in CACHES if (value := getattr(out, name, None)) is not None}
        if not found:
            raise UserError("the output has no cache")
        return logits_of(out), found


class DecoderAdapter(TransformersAdapter):
    """The decoder of an encoder-decoder, with one fixed source for all rows."""

    def arguments(self, rows: int) -> dict[str, Tensor]:
        """The source, as many rows of it."""
        generator = torch.Generator().manual_seed(5)
        source = torch.randint(self.vocabulary, (1, SOURCE), generator=generator) + self.first
        return {"input_ids": source.expand(rows, -1), "attention_mask": torch.ones(rows, SOURCE, dtype=torch.long)}

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._logits(**self.arguments(len(tokens)), decoder_input_ids=tokens + self.first, use_cache=False)

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        real = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
        given = self.arguments(len(tokens))
        ids = tokens + self.first
        return self._logits(**given, decoder_input_ids=ids, decoder_attention_mask=real, use_cache=False)

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        given = self.arguments(len(tokens))
        ids = tokens + self.first
        out = self.module(**given, decoder_input_ids=ids, past_key_values=state, use_cache=True)
        return logits_of(out), out.past_key_values


class SourceAdapter(TransformersAdapter):
    """What an encoder-decoder makes of its source: the encoder's states, beside them the logits of a fixed target."""

    def _both(self, tokens: Tensor, real: Tensor) -> Tensor:
        target = torch.arange(4).expand(len(tokens), -1) + self.first
        given = {"input_ids": tokens + self.first, "attention_mask": real, "decoder_input_ids": target}
        out = self.module(**given, use_cache=False)
        logits = logits_of(out).flatten(1)[:, None].expand(-1, tokens.shape[1], -1)
        return torch.cat((out.encoder_last_hidden_state, logits), dim=-1)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._both(tokens, torch.ones_like(tokens))

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self._both(tokens, (torch.arange(tokens.shape[1]) < lengths[:, None]).long())


class ImageAdapter:
    """An image model; the "tokens" choose noise images that are added."""

    vocabulary, length = 64, 6

    def __init__(self, model: Any):
        self.module = model
        config = getattr(model.config, "vision_config", model.config)
        size, channels = image_size(config), getattr(config, "num_channels", 3)
        generator = torch.Generator().manual_seed(5)
        self.noise = torch.randn(self.vocabulary, channels, size, size, generator=generator)

    def __call__(self, tokens: Tensor) -> Tensor:
        return logits_of(self.module(pixel_values=self.noise[tokens].mean(1)))[:, None]


def image_size(config: Any) -> int:
    """The side of a square image that the model takes."""
    size = getattr(config, "image_size", None)
    size = size[0] if isinstance(size, list | tuple) else size
    return size if isinstance(size, int) else 64


def _causal(model: Any) -> Iterator[tuple[str, Certificate]]:
    adapter = CausalAdapter(model)
    yield "", certify(_subject(adapter, causal=True, stepper=adapter, variants=adapter.variants()), claims=CLAIMS)


def _masked(model: Any) -> Iterator[tuple[str, Certificate]]:
    adapter = TransformersAdapter(model)
    claims = ("padding", "batching", "finite")
    yield "", certify(_subject(adapter, causal=False, variants=adapter.variants()), claims=claims)


def _seq2seq(model: Any) -> Iterator[tuple[str, Certificate]]:
    if not model.config.is_encoder_decoder:  # a causal language model that reads audio features
        yield from _causal(model)
        return
    decoder = DecoderAdapter(model)
    yield "decoder ", certify(_subject(decoder, causal=True, stepper=decoder), claims=CLAIMS)
    yield "source ", certify(_subject(SourceAdapter(model), causal=False), claims=("padding", "batching"))


def _image(model: Any) -> Iterator[tuple[str, Certificate]]:
    adapter = ImageAdapter(model)
    subject = ModelUnderTest(adapter, vocabulary=adapter.vocabulary, length=adapter.length, causal=False)
    yield "", certify(subject, claims=("batching", "finite"))


def _subject(adapter: TransformersAdapter, **settings: Any) -> ModelUnderTest:
    return ModelUnderTest(
        adapter, vocabulary=adapter.vocabulary, length=adapter.length, padded=adapter.padded, **settings
    )


class Group(NamedTuple):
    """A group of model classes."""

    title: str
    mapping: str  # in transformers' modeling_auto
    test: Callable[[Any], Iterator[tuple[str, Certificate]]]
    probe: Callable[[Any], object]  # runs the model once


def _tokens(model: Any) -> Tensor:
    vocabulary = min(90, model.config.get_text_config().vocab_size)
    return torch.randint(3, vocabulary, (1, 24), generator=torch.Generator().manual_seed(0))


GROUPS = {
    "causal": Group(
        "Causal language models",
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        _causal,
        lambda model: model(input_ids=_tokens(model)),
    ),
    "masked": Group(
        "Masked language models",
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        _masked,
        lambda model: model(input_ids=_tokens(model)),
    ),
    "seq2seq": Group(
        "Encoder-decoders",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        _seq2seq,
        lambda model: model(input_ids=_tokens(model), decoder_input_ids=_tokens(model)),
    ),
    "image": Group(
        "Image classifiers",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        _image,
        lambda model: ImageAdapter(model)(torch.zeros(1, 6, dtype=torch.long)),
    ),
}


def certificates(group: str, model: Any) -> Iterator[tuple[str, Certificate]]:
    """The certificates of a model, each with a prefix for the names of its claims."""
    return GROUPS[group].test(model)
