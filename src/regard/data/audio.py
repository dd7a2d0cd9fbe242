"""Files of sound, and log-mel spectrograms of speech as Whisper reads them (Radford et al. 2023, sec. 2.2)."""

import io
import math
import os
import struct
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.nn.sound import mel_filters
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


LARGEST = 256 * 2**20  # bytes of a file of sound
LONGEST = 2**27  # samples of a file, over all channels: a small file can unpack to a huge one
ZEROS = 16  # of the sinc that changes the rate, on each side
STEEPEST = 1 << 24  # elements of the filters that change the rate


def read_sound(path: Path, rate: int = RATE) -> Tensor:
    """The samples [N] of a file in [-1, 1] at a rate: channels are averaged, other rates resampled.

    WAV files of 8 to 32 bits are read by the standard library, other formats by soundfile (OGG, FLAC, MP3).
    """
    return decoded(_content(path), path, rate)


def decoded(content: bytes, path: Path, rate: int = RATE) -> Tensor:
    """The samples [N] of the content of a file of sound; ``path`` names it in messages."""
    with suppress(wave.Error, EOFError, ValueError, RuntimeError, struct.error):
        return _decoded_wav(content, path, rate)
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: without its library
        raise UserError(
            f"{path} is no WAV file of plain samples; other formats are read by soundfile: pip install 'regard[audio]'"
        ) from error
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            most, given = LONGEST // max(1, sound.channels), sound.samplerate
            samples = np.asarray(sound.read(most, dtype="float32", always_2d=True), np.float32)
    except (RuntimeError, ValueError, TypeError, MemoryError, OSError) as error:  # its own errors are RuntimeErrors
        reason = str(error).rpartition(">: ")[2]  # without the name of the object in memory
        raise UserError(
            f"{path} is no WAV file of plain samples, nor a sound that soundfile reads ({reason}); convert it: "
            f"ffmpeg -i {path.name} -ar 16000 -ac 1 speech.wav"
        ) from error
    return _mono(samples, path, given, rate)


def _content(path: Path) -> bytes:
    """The bytes of a file of sound."""
    try:
        with open(open_plain(path, follow=True), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise UserError(f"{path} has more than {LARGEST:,} bytes; cut it into shorter files")
            return file.read()
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; check the path") from None
    except OSError as error:
        raise unreadable(path, error) from error


def _decoded_wav(content: bytes, path: Path, rate: int) -> Tensor:
    with wave.open(io.BytesIO(content)) as sound:
        channels, width, given = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
        if width not in (1, 2, 3, 4):
            raise ValueError(f"samples of {8 * width} bits")
        data = sound.readframes(sound.getnframes())
    data = data[: len(data) // (channels * width) * channels * width]
    if width == 1:  # bytes are unsigned, wider samples signed
        samples = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        samples = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return _mono(samples.reshape(-1, channels), path, given, rate)


def _mono(samples: NDArray[np.floating], path: Path, given: int, rate: int) -> Tensor:
    """Samples [N, channels] as one channel at another rate."""
    if not 1000 <= given <= 1_000_000:
        raise UserError(f"{path} has {given:,} samples per second; convert it: ffmpeg -i {path.name} -ar 16000 a.wav")
    if not samples.size:
        raise UserError(f"{path} has no samples; record it again")
    found = np.nan_to_num(
        samples.mean(1, dtype=np.float32), posinf=0.0, neginf=0.0
    )  # a damaged file of floats may hold any
    return resampled(torch.from_numpy(found), given, rate)


def resampled(samples: Tensor, rate: int, target: int = RATE) -> Tensor:
    """Samples [N] at another rate to ``target``: sinc interpolation below the lower of both Nyquist frequencies.

    Smith, "Digital audio resampling", eq. 5. The sinc has ``ZEROS`` zeros on each side, under a Hann window; one filter
    for each of the new samples in the shortest time that has whole numbers of old and new ones.
    """
    common = math.gcd(rate, target)
    old, new = rate // common, target // common
    if old == new:
        return samples
    cutoff = 0.95 * min(old, new)  # the filter falls off over some width
    reach = math.ceil(ZEROS * old / cutoff)
    if new * (2 * reach + old) > STEEPEST:
        raise UserError(
            f"a rate of {rate:,} samples per second cannot be changed to {target:,}; convert the file first"
        )
    times = torch.arange(-reach, reach + old) / old - torch.arange(new)[:, None] / new  # [new, taps]
    times = (times * cutoff).clamp(-ZEROS, ZEROS)
    window = torch.cos(times * math.pi / 2 / ZEROS).square()
    filters = torch.sinc(times) * window * cutoff / old
    padded = F.pad(samples, (reach, reach + old))
    found = F.conv1d(padded[None, None], filters[:, None].to(samples), stride=old)[0]  # [new, windows]
    return found.t().flatten()[: math.ceil(len(samples) * new / old)]
