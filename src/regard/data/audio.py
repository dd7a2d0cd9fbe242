"""Log-mel spectrograms of speech, as Whisper reads them (Radford et al. 2023, sec. 2.2)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

RATE = 16_000  # samples per second
WINDOW, HOP = 400, 160  # samples: 25 ms every 10 ms
SECONDS = 30  # of a window of Whisper


def log_mel(samples: Tensor, mels: int = 80, seconds: float | None = SECONDS) -> Tensor:
    """Samples [..., N] in [-1, 1] at 16 kHz to [..., mels, frames], a frame every 10 ms.

    The sound is cut or padded with silence to ``seconds``; None keeps its length.
    """
    if seconds is not None:
        size = round(seconds * RATE)
        samples = F.pad(samples[..., :size], (0, max(0, size - samples.shape[-1])))
    flat = samples.reshape(-1, samples.shape[-1])
    window = torch.hann_window(WINDOW, dtype=samples.dtype, device=samples.device)
    waves = torch.stft(flat, WINDOW, HOP, window=window, return_complex=True)[..., :-1]  # [B, WINDOW / 2 + 1, frames]
    power = mel_filters(mels).to(samples) @ waves.abs().square()
    log = power.clamp(min=1e-10).log10()
    log = log.maximum(log.amax(dim=(-2, -1), keepdim=True) - 8)
    return ((log + 4) / 4).reshape(*samples.shape[:-1], mels, -1)


def mel_filters(mels: int) -> Tensor:
    """Triangles of equal area [mels, WINDOW / 2 + 1], equally wide on Slaney's mel scale from 0 to 8 kHz."""
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    top = 15 + math.log(RATE / 2 / 1000) / _STEP
    edges = _hertz(torch.linspace(0, top, mels + 2, dtype=torch.float64))
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return rising.minimum(falling).clamp(min=0) * 2 / (high - low)


_STEP = math.log(6.4) / 27  # of the logarithm of a frequency, per mel


def _hertz(mel: Tensor) -> Tensor:
    """Linear up to 15 mel, which are 1,000 Hz, then exponential."""
    return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * _STEP))
