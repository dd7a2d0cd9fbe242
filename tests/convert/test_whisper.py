"""Whisper against `transformers`: features of sound, import, decoding, export and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import in_float64, randomized
from torch import Tensor

from regard.convert.hub import read_hub, write_hub
from regard.data.audio import log_mel
from regard.errors import UserError
from regard.models import Transformer

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 61, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4}
SIZES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "num_mel_bins": 7}
SIZES |= {"max_source_positions": 13, "max_target_positions": 20, "pad_token_id": 60, "bos_token_id": 60}
SIZES |= {"eos_token_id": 0, "decoder_start_token_id": 60}


def oracle() -> Any:
    config = transformers.WhisperConfig(**SIZES)
    config._attn_implementation = "eager"  # kernels in float32 only otherwise
    return transformers.WhisperForConditionalGeneration(config)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Spectrograms, their lengths, and target tokens."""
    generator = torch.Generator().manual_seed(1)
    spectrogram = torch.randn(2, 7, 26, generator=generator)
    return spectrogram, torch.tensor([26, 26]), torch.randint(1, 60, (2, 9), generator=generator)


def both(folder: Path) -> tuple[Any, Any, Transformer]:
    theirs = randomized(oracle())
    theirs.save_pretrained(folder)
    config, weights, certificate, *_ = read_hub(folder)
    model = config.build().eval()
    model.load_state_dict(weights)
    assert isinstance(model, Transformer)
    return theirs, certificate, model


@torch.no_grad()
def test_a_model_equals_transformers_and_comes_back(tmp_path: Path) -> None:
    theirs, certificate, model = both(tmp_path / "theirs")
    assert certificate.parameters == sum(weight.numel() for weight in theirs.parameters())
    sound, lengths, targets = inputs()
    named = {"input_features": sound, "decoder_input_ids": targets}
    assert gap(model(targets, sound, lengths), theirs(**named).logits) <= 1e-4
    named["input_features"] = sound.double()
    exact = in_float64(oracle, theirs)(**named).logits
    assert gap(model.double()(targets, sound.double(), lengths), exact) <= 1e-9
    write_hub(tmp_path / "ours", model.config, model.float(), None)
    again = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "ours")
    first, second = theirs.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@torch.no_grad()
def test_decoding_with_a_cache_equals_the_full_pass_and_generate(tmp_path: Path) -> None:
    theirs, _, model = both(tmp_path)
    sound, lengths, targets = inputs()
    full = model(targets, sound, lengths)
    state = model.start(2, 9, source=sound, source_lengths=lengths)
    for t in range(9):
        logits, state = model.step(targets[:, t : t + 1], state)
        assert gap(logits[:, 0], full[:, t]) <= 1e-5
    limits = {"max_new_tokens": 12, "num_beams": 1, "do_sample": False, "eos_token_id": None, "pad_token_id": 60}
    want = transformers.GenerationMixin.generate(theirs, input_features=sound, **limits)  # without Whisper's own rules
    state, token, written = model.start(2, 12, source=sound, source_lengths=lengths), want[:, :1], [want[:, :1]]
    for _ in range(12):
        logits, state = model.step(token, state)
        token = logits.argmax(-1)
        written.append(token)
    assert torch.equal(torch.cat(written, dim=1), want)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 4, 7, 26])
def test_a_shorter_sound_in_a_batch_is_read_as_alone(length: int, tmp_path: Path) -> None:
    _, _, model = both(tmp_path)
    sound, _, targets = inputs()
    together = model(targets, sound, torch.tensor([26, length]))
    alone = model(targets[1:], sound[1:, :, :length], torch.tensor([length]))
    assert gap(together[1:], alone) <= 1e-5


def test_a_bias_of_the_keys_cannot_be_exported(tmp_path: Path) -> None:
    _, _, model = both(tmp_path / "theirs")
    with torch.no_grad():
        model.encoder.layers[0].attention.qkv.bias[30] = 0.5  # of the keys, which are the rows 24 to 47
    with pytest.raises(UserError, match=r"encoder\.0\.attention\.qkv\.bias has a part"):
        write_hub(tmp_path / "ours", model.config, model, None)


def test_tokens_are_refused(tmp_path: Path) -> None:
    _, _, model = both(tmp_path)
    with pytest.raises(UserError, match="reads mel spectrograms"):
        model(torch.ones(1, 3).long(), torch.ones(1, 5).long(), torch.tensor([5]))


@pytest.mark.parametrize("mels", [80, 128])
def test_features_equal_those_of_transformers(mels: int) -> None:
    time = torch.arange(40_000) / 16_000
    noise = torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    samples = 0.3 * torch.sin(2 * torch.pi * (200 + 900 * time) * time) + 0.01 * noise
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    want = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt").input_features[0]
    got = log_mel(samples, mels)
    assert got.shape == (mels, 3000)
    assert (got - want).abs().max() <= 1e-4
    assert (log_mel(samples.double(), mels) - want).abs().max() <= 1e-4
    short = log_mel(samples.expand(2, -1), mels, seconds=None)
    assert short.shape == (2, mels, 250)
    assert (short[0, :, :240] - got[:, :240]).abs().max() <= 1e-4


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
