"""Sound as sequences of vectors: from spectrograms, or from the samples themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import option
from regard.nn.signals import SignalEmbedding, SignalEmbeddingConfig, T

_STEP = math.log(6.4) / 27  # of the logarithm of a frequency, per mel
_EVEN = 1e-5  # added to the variance of a band
_BIAS = 0.3  # deviation of the biases of convolutions
_QUIET = 0.1  # added to that of channels: hidden frames are all zero there, and 1 / deviation multiplies their gradient


def mel_filters(mels: int, rate: int = 16_000, window: int = 400) -> Tensor:
    """Triangles of equal area [mels, window // 2 + 1], equally wide on Slaney's mel scale from 0 to half the rate."""
    frequencies = torch.linspace(0, rate / 2, window // 2 + 1, dtype=torch.float64)
    top = rate / 2 * 3 / 200 if rate < 2000 else 15 + math.log(rate / 2 / 1000) / _STEP
    edges = _hertz(torch.linspace(0, top, mels + 2, dtype=torch.float64))
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return rising.minimum(falling).clamp(min=0) * 2 / (high - low)


def _hertz(mel: Tensor) -> Tensor:
    """Linear up to 15 mel, which are 1,000 Hz, then exponential."""
    return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * _STEP))


class STFT(nn.Module):
    """The short-time Fourier transform as a convolution: samples [B, T] to [B, 2, F, N], real and imaginary parts.

    X_f,n = Σ_t w_t x_{n·hop + t - W/2} e^(-2πi·f·t/W) with Hann's window w of W samples, F = ⌊W/2⌋ + 1 frequencies and
    N = ⌈T / hop⌉ frames; samples outside are zero. It equals the first N frames of ``torch.stft`` with
    ``pad_mode="constant"``, is a matrix product, and so exports and differentiates as one.
    """

    kernel: Tensor  # [2F, 1, W]

    def __init__(self, window: int, hop: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.window, self.hop = window, hop
        times = torch.arange(window, dtype=torch.float64)
        angles = 2 * math.pi / window * (torch.arange(window // 2 + 1)[:, None] * times % window)
        waves = torch.cat((angles.cos(), -angles.sin())) * torch.hann_window(window, dtype=torch.float64)
        self.register_buffer("kernel", waves[:, None].to(dtype), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        count = -(-samples.shape[1] // self.hop)
        behind = max(0, (count - 1) * self.hop + self.window - self.window // 2 - samples.shape[1])
        padded = F.pad(samples, (self.window // 2, behind))[:, None]
        return F.conv1d(padded, self.kernel, stride=self.hop)[:, :, :count].unflatten(1, (2, -1))


class LogMel(nn.Module):
    """Samples [B, T] to the logarithms of energy in bands of the mel scale, [B, bands, N].

    Whisper's range (Radford et al. 2023, sec. 2.2): nothing is more than 8 powers of ten below the loudest. Then each
    band gets mean 0 and variance 1 over the frames of its signal, so that neither volume nor line matters. Without
    ``each_band`` the whole spectrogram does: the mean spectrum of a voice remains.
    """

    def __init__(self, bands: int, rate: int, windows: tuple[int, ...], hop: int, each_band: bool = True):
        super().__init__()
        self.over = (2,) if each_band else (1, 2)
        self.transforms = nn.ModuleList(STFT(window, hop) for window in windows)
        for number, window in enumerate(windows):
            filters = mel_filters(bands, rate, window).float()
            self.register_buffer(f"filters{number}", filters, persistent=False)

    def forward(self, samples: Tensor, real: Tensor) -> Tensor:
        """``real`` [B, 1, N]: 1 for frames of the signal, 0 for padding."""
        found = []
        for number, transform in enumerate(self.transforms):
            power = self.get_buffer(f"filters{number}") @ transform(samples).square().sum(1)
            log = (power + 1e-10).log10()
            loudest = log.masked_fill(real == 0, -torch.inf).amax(dim=(1, 2), keepdim=True)
            found.append(log.maximum(loudest - 8))
        x = torch.cat(found, dim=1) * real
        count = real.expand_as(x).sum(self.over, keepdim=True).clamp(min=1)
        x = (x - x.sum(self.over, keepdim=True) / count) * real
        return x * (x.square().sum(self.over, keepdim=True) / count + _EVEN).rsqrt()


class StridedConvolutions(nn.Module):
    """Convolutions with strides, each followed by GELU and a norm over the channels: [B, I, N] to [B, C, ⌈N/strides⌉].

    Padding is zero before each of them, so that a signal gives the same alone and in a padded batch.
    """

    def __init__(self, inputs: int, width: int, strides: tuple[int, ...], kernels: tuple[int, ...]):
        super().__init__()
        self.strides = strides
        sizes = zip([inputs, *[width] * (len(strides) - 1)], strides, kernels, strict=True)
        self.layers = nn.ModuleList(
            nn.Conv1d(size, width, kernel, stride=stride, padding=kernel // 2) for size, stride, kernel in sizes
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """``lengths`` [B]: real places of x."""
        for number, (layer, stride) in enumerate(zip(self.layers, self.strides, strict=True)):
            if number:
                x = F.gelu(x)
                x = (x - x.mean(1, keepdim=True)) * (x.var(1, keepdim=True, correction=0) + _QUIET).rsqrt()
            x = layer(x * within(lengths, x.shape[2], x))
            lengths = _ceil(lengths, stride)
        return x


def within(lengths: Tensor, count: int, like: Tensor) -> Tensor:
    """1 for the first ``lengths`` of ``count`` places of each row, else 0: [B, 1, count]."""
    return (torch.arange(count, device=like.device) < lengths[:, None])[:, None].to(like.dtype)


def _ceil(length: T, divisor: int) -> T:
    return (length + divisor - 1) // divisor


@dataclass(frozen=True)
class SoundEmbeddingConfig(SignalEmbeddingConfig):
    """Base class: mono sound becomes a sequence by steps of several samples."""

    strides: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """By how much each stage divides the length."""
        return self.strides

    def check(self) -> None:
        super().check()
        if not self.strides:
            raise ValueError("strides are numbers of at least 1, not none")

    def count(self, length: T) -> T:
        for stride in self.steps:
            length = _ceil(length, stride)
        return length

    def length(self, parts: int) -> int:
        return parts * math.prod(self.steps)


@dataclass(frozen=True)
class LogMelConfig(SoundEmbeddingConfig, kind="log-mel"):
    """Log-mel spectrograms of one or several window lengths, then strided convolutions."""

    rate: int = option(16_000, "samples per second of the sounds")
    bands: int = option(40, "frequency bands", least=1)
    window: tuple[float, ...] = option((25.0,), "milliseconds of a window; several: bands at several resolutions")
    hop: float = option(10.0, "milliseconds from one frame to the next")
    strides: tuple[int, ...] = option((2, 2), "by how much each convolution divides the number of frames", least=1)
    each_band: bool = option(True, "mean 0 and variance 1 of each band over a sound; false: of all bands together")
    mask_bands: int = option(0, "in training, hide up to so many neighboring bands, twice (SpecAugment)", least=0)
    mask_frames: int = option(0, "in training, hide up to so many neighboring frames, twice", least=0)

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return round(self.hop * self.rate / 1000)

    @property
    def steps(self) -> tuple[int, ...]:
        return (self.hop_samples, *self.strides)

    def check(self) -> None:
        super().check()
        if self.hop_samples < 1 or not self.window or any(round(w * self.rate / 1000) < 2 for w in self.window):
            raise ValueError("windows need at least 2 samples, and a hop 1; make window, hop or rate larger")
        if self.mask_bands > self.bands:
            raise ValueError(f"mask_bands must be at most bands = {self.bands}, not {self.mask_bands}")

    def build(self, channels: int, width: int) -> LogMelEmbedding:
        return LogMelEmbedding(self, channels, width)


class SoundEmbedding(SignalEmbedding):
    """Sounds [B, T, 1] to the vectors of their parts, which overlap."""

    overlap = True
    stages: StridedConvolutions

    def forward(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.check(signals)
        if lengths is None:
            lengths = signals.new_full(signals.shape[:1], signals.shape[1], dtype=torch.long)
        return self.parts(signals[:, :, 0], lengths).transpose(1, 2)

    def parts(self, samples: Tensor, lengths: Tensor) -> Tensor:
        """The parts [B, C, N] of samples [B, T]."""
        raise NotImplementedError

    def reset(self) -> None:
        """Every convolution keeps about the variance of its inputs.

        Biases are not 0: hidden frames would become zero vectors, whose gradient a norm multiplies by a thousand.
        """
        for layer in self.stages.layers:
            assert isinstance(layer, nn.Conv1d)
            nn.init.normal_(layer.weight, std=(layer.in_channels * layer.kernel_size[0]) ** -0.5)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=_BIAS)


class LogMelEmbedding(SoundEmbedding):
    """A log-mel spectrogram, as a ``LogMel``, then convolutions over its frames, as in Whisper."""

    config: LogMelConfig

    def __init__(self, config: LogMelConfig, channels: int, width: int):
        super().__init__()
        c, self.config, self.channels = config, config, check_mono(channels)
        windows = tuple(round(window * c.rate / 1000) for window in c.window)
        self.spectrum = LogMel(c.bands, c.rate, windows, c.hop_samples, c.each_band)
        self.hidden = nn.Sequential(RangeDropout(c.mask_bands, 1), RangeDropout(c.mask_frames, 2))
        kernels = tuple(max(3, 2 * stride - 1) for stride in c.strides)
        self.stages = StridedConvolutions(c.bands * len(windows), width, c.strides, kernels)

    def parts(self, samples: Tensor, lengths: Tensor) -> Tensor:
        frames = _ceil(lengths, self.config.hop_samples)
        real = within(frames, _ceil(samples.shape[1], self.config.hop_samples), samples)
        return self.stages(self.hidden(self.spectrum(samples, real)), frames)


class RangeDropout(nn.Dropout):
    """In training, two ranges of up to ``most`` places of an axis of x [B, bands, N] become 0 (Park et al. 2019).

    The mean of a normalized spectrogram is 0. ``p`` is the probability that a range is hidden at all.
    """

    def __init__(self, most: int, axis: int):
        super().__init__(1.0)
        self.most, self.axis = most, axis

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.most or not self.p:
            return x
        places = torch.arange(x.shape[self.axis], device=x.device)
        for _ in range(2):
            random = torch.rand(2, x.shape[0], 1, device=x.device)
            size = (random[0] * (self.most + 1)).long()
            start = (random[1] * (x.shape[self.axis] - size + 1).clamp(min=1)).long()
            out = (places >= start) & (places < start + size)  # [B, places]
            x = x.masked_fill(out[:, :, None] if self.axis == 1 else out[:, None], 0.0)
        return x


@dataclass(frozen=True)
class WaveformConfig(SoundEmbeddingConfig, kind="waveform"):
    """Strided convolutions of the samples, a hierarchy of rates (Baevski et al. 2020, sec. 2)."""

    strides: tuple[int, ...] = option(
        (5, 4, 4, 4), "by how much each convolution divides the number of places", least=1
    )

    def build(self, channels: int, width: int) -> WaveformEmbedding:
        return WaveformEmbedding(self, channels, width)


class WaveformEmbedding(SoundEmbedding):
    """Convolutions of the samples, which first get variance 1."""

    config: WaveformConfig

    def __init__(self, config: WaveformConfig, channels: int, width: int):
        super().__init__()
        self.config, self.channels = config, check_mono(channels)
        self.stages = StridedConvolutions(1, width, config.strides, tuple(2 * stride + 1 for stride in config.strides))

    def parts(self, samples: Tensor, lengths: Tensor) -> Tensor:
        power = samples.square().sum(1, keepdim=True) / lengths[:, None].clamp(min=1)
        return self.stages((samples * (power + 1e-8).rsqrt())[:, None], lengths)


def check_mono(channels: int) -> int:
    """The one channel; a ``ValueError`` for several."""
    if channels != 1:
        raise ValueError(f"sounds have one channel, not {channels}; choose the embedding patches")
    return channels
