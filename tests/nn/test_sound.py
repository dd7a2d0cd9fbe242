"""Spectrograms against torch and transformers; parts of a sound do not depend on the padding of its batch."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

from regard.data.audio import log_mel
from regard.models import SignalConfig, SignalEncoder
from regard.nn.signals import PatchesConfig, SignalEmbeddingConfig
from regard.nn.sound import STFT, LogMel, LogMelConfig, RangeDropout, WaveformConfig, mel_filters, within

SMALL = LogMelConfig(rate=2000, bands=8, window=(20.0, 50.0), strides=(2, 3))
WHOLE = replace(SMALL, each_band=False)
EMBEDDINGS: list[SignalEmbeddingConfig] = [PatchesConfig(3), SMALL, WHOLE, WaveformConfig((3, 2, 2))]


def sound(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 3), st.integers(1, 300), st.integers(2, 60), st.integers(1, 40))
def test_the_convolution_is_the_stft_of_torch(batch: int, length: int, window: int, hop: int) -> None:
    samples = sound(batch, length)
    want = torch.stft(
        samples,
        window,
        hop,
        window=torch.hann_window(window, dtype=torch.float64),
        pad_mode="constant",
        return_complex=True,
    )
    found = STFT(window, hop, torch.float64)(samples)
    count = -(-length // hop)
    assert found.shape == (batch, 2, window // 2 + 1, count)
    frames = min(count, want.shape[2])  # with an odd window, torch may make one frame less
    assert frames >= count - 1
    torch.testing.assert_close(torch.complex(found[:, 0], found[:, 1])[..., :frames], want[..., :frames])


def test_gradient_reaches_the_samples() -> None:
    samples = sound(2, 90).requires_grad_()
    assert torch.autograd.gradcheck(STFT(12, 5, torch.float64), samples)


@pytest.mark.parametrize(("mels", "rate", "window"), [(80, 16_000, 400), (40, 8000, 200), (20, 22_050, 512)])
def test_mel_filters(mels: int, rate: int, window: int) -> None:
    want = mel_filter_bank(
        num_frequency_bins=window // 2 + 1,
        num_mel_filters=mels,
        min_frequency=0.0,
        max_frequency=rate / 2,
        sampling_rate=rate,
        norm="slaney",
        mel_scale="slaney",
    )
    torch.testing.assert_close(mel_filters(mels, rate, window), torch.from_numpy(want).T)


def test_log_mel_is_that_of_whisper_normalized() -> None:
    samples = torch.cat((torch.zeros(400), sound(16_000).float() * 0.1, torch.zeros(400)))[None]  # both pad with zeros
    want = log_mel(samples, 40, seconds=None) * 4 - 4
    want = (want - want.mean(2, keepdim=True)) / want.std(2, keepdim=True, correction=0)
    frames = -(-samples.shape[1] // 160)
    found = LogMel(40, 16_000, (400,), 160)(samples, torch.ones(1, 1, frames))
    torch.testing.assert_close(found[..., : want.shape[2]], want, rtol=1e-3, atol=1e-3)


def test_a_whole_spectrogram_normalized_keeps_the_differences_between_bands() -> None:
    samples, real = sound(1, 8000).float() * 0.1, torch.ones(1, 1, 50)
    samples[:, ::2] += 0.1
    found = LogMel(40, 16_000, (400,), 160, each_band=False)(samples, real)
    assert abs(found.mean()) < 1e-4
    assert abs(found.var(correction=0) - 1) < 1e-3
    torch.testing.assert_close(LogMel(40, 16_000, (400,), 160, False)(10 * samples, real), found, rtol=1e-3, atol=1e-3)
    assert found.mean(2).std() > 0.3


@pytest.mark.parametrize("config", EMBEDDINGS, ids=lambda config: config.kind)
@given(st.integers(1, 400), st.integers(0, 200), st.integers(0, 2**31))
def test_padding_changes_nothing(config: SignalEmbeddingConfig, length: int, padding: int, seed: int) -> None:
    torch.manual_seed(seed)
    embed = config.build(1, 8).double().eval()
    embed.reset()
    alone = sound(1, length, 1, seed=seed % 1000)
    batch = torch.zeros(2, length + padding, 1, dtype=torch.float64)
    batch[0, :length] = alone[0]
    batch[1] = sound(length + padding, 1, seed=7)
    want, found = embed(alone), embed(batch, torch.tensor([length, length + padding]))
    assert want.shape[1] == config.count(length)
    assert found.shape[1] == config.count(length + padding)
    torch.testing.assert_close(found[:1, : want.shape[1]], want)


@pytest.mark.parametrize("statistics", [False, True])
def test_a_padded_sound_has_the_same_class(statistics: bool) -> None:
    config = SignalConfig(points=300, width=16, heads=2, layers=2, embed=SMALL, statistics=statistics)
    model = config.build().double().eval()
    short, long = sound(1, 210, 1, seed=1), sound(1, 300, 1, seed=2)
    batch = torch.cat((torch.nn.functional.pad(short, (0, 0, 0, 90), value=3.0), long))
    found = model(batch, torch.tensor([210, 300]))
    torch.testing.assert_close(found, torch.cat((model(short), model(long))))


def test_statistics_are_mean_and_deviation() -> None:
    model = SignalConfig(points=300, width=16, heads=2, layers=2, embed=SMALL, statistics=True).build().double()
    assert isinstance(model, SignalEncoder)
    assert model.of_deviation is not None
    model.of_deviation.weight.data = torch.eye(16, dtype=torch.float64)
    x = sound(3, 7, 16)
    torch.testing.assert_close(model.pooled(x), x.mean(1) + (x.var(1, correction=0) + 1e-5).sqrt())


@given(st.sampled_from([1, 2]), st.integers(1, 20))
def test_hidden_ranges(axis: int, most: int) -> None:
    x, layer = torch.ones(5, 8, 30), RangeDropout(most, axis)
    lost = (layer(x).amax(dim=3 - axis) == 0).sum(1)  # places where every value of the row is hidden
    assert int(lost.max()) <= 2 * most
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(RangeDropout(0, axis)(x), x)


def test_within() -> None:
    assert within(torch.tensor([0, 2]), 3, torch.ones(1)).tolist() == [[[0, 0, 0]], [[1, 1, 0]]]


@pytest.mark.parametrize(
    "config",
    [
        LogMelConfig(rate=10),
        LogMelConfig(bands=0),
        LogMelConfig(mask_bands=99),
        WaveformConfig(()),
        WaveformConfig((0,)),
    ],
)
def test_impossible_sizes(config: SignalEmbeddingConfig) -> None:
    with pytest.raises(ValueError, match=r"must be|need|are numbers"):
        config.check()


def test_sounds_are_mono() -> None:
    with pytest.raises(ValueError, match="one channel"):
        SMALL.build(2, 8)
