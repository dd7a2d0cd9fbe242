"""WAV files, and log-mel spectrograms of speech as Whisper reads them (Radford et al. 2023, sec. 2.2)."""

import math
import os
import struct
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.untrusted import open_plain, unreadable

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


LARGEST = 256 * 2**20  # bytes of a WAV file that is read
ZEROS = 16  # of the sinc that changes the rate, on each side
STEEPEST = 1 << 24  # elements of the filters that change the rate


def read_wav(path: Path) -> Tensor:
    """The samples [N] of a WAV file in [-1, 1] at 16 kHz: channels are averaged, other rates resampled."""
    try:
        with open(open_plain(path, follow=True), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise UserError(f"{path} has more than {LARGEST:,} bytes; cut it into shorter files")
            with wave.open(file) as sound:
                channels, width, rate = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
                if width not in (1, 2, 3, 4) or not 1000 <= rate <= 1_000_000:
                    raise ValueError(f"samples of {8 * width} bits, {rate:,} per second")
                data = sound.readframes(sound.getnframes())
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; give a WAV file") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except (wave.Error, EOFError, ValueError, RuntimeError, struct.error) as error:
        raise UserError(
            f"{path} is no WAV file of plain samples ({error or 'it is cut off'}); convert it: ffmpeg -i {path.name} "
            "-ar 16000 -ac 1 speech.wav"
        ) from error
    data = data[: len(data) // (channels * width) * channels * width]
    if width == 1:  # bytes are unsigned, wider samples signed
        samples = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        samples = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    if not samples.size:
        raise UserError(f"{path} has no samples; record it again")
    return resampled(torch.from_numpy(samples.reshape(-1, channels).mean(1)), rate)


def resampled(samples: Tensor, rate: int) -> Tensor:
    """Samples [N] at another rate to 16 kHz: sinc interpolation below the lower of both Nyquist frequencies.

    Smith, "Digital audio resampling", eq. 5. The sinc has ``ZEROS`` zeros on each side, under a Hann window; one filter
    for each of the new samples in the shortest time that has whole numbers of old and new ones.
    """
    common = math.gcd(rate, RATE)
    old, new = rate // common, RATE // common
    if old == new:
        return samples
    cutoff = 0.95 * min(old, new)  # the filter falls off over some width
    reach = math.ceil(ZEROS * old / cutoff)
    if new * (2 * reach + old) > STEEPEST:
        raise UserError(f"a rate of {rate:,} samples per second cannot be changed to {RATE:,}; convert the file first")
    times = torch.arange(-reach, reach + old) / old - torch.arange(new)[:, None] / new  # [new, taps]
    times = (times * cutoff).clamp(-ZEROS, ZEROS)
    window = torch.cos(times * math.pi / 2 / ZEROS).square()
    filters = torch.sinc(times) * window * cutoff / old
    padded = F.pad(samples, (reach, reach + old))
    found = F.conv1d(padded[None, None], filters[:, None].to(samples), stride=old)[0]  # [new, windows]
    return found.t().flatten()[: math.ceil(len(samples) * new / old)]
