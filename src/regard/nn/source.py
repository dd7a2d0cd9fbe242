"""What an encoder-decoder reads: tokens, or the mel spectrogram of speech."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.errors import UserError


class TokenSource(nn.Embedding):
    """Tokens [B, S] to vectors [B, S, C]."""

    vocabulary: int  # number of token ids; 0 for sources that are no tokens

    def __init__(self, vocabulary: int, width: int):
        super().__init__(vocabulary, width)
        self.vocabulary = vocabulary

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(source)

    def lengths(self, lengths: Tensor) -> Tensor:
        """How many vectors sources of these lengths become."""
        return lengths


class AudioSource(nn.Module):
    """Two convolutions: a mel spectrogram [B, M, T] to a vector for every two frames, [B, ⌈T/2⌉, C].

    Radford et al. 2023 (Whisper), sec. 2.2. Frames after the length of a row count as zero.
    """

    vocabulary = 0

    def __init__(self, mels: int, width: int):
        super().__init__()
        self.mels = mels
        self.conv1 = nn.Conv1d(mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        if source.ndim != 3 or source.shape[1] != self.mels:
            raise UserError(
                f"this model reads mel spectrograms of shape [B, {self.mels}, T], not {list(source.shape)}; "
                "regard.data.audio.log_mel makes them from sound"
            )
        real = (torch.arange(source.shape[2], device=source.device) < lengths[:, None])[:, None]
        x = F.gelu(self.conv1(source * real))
        return F.gelu(self.conv2(x * real)).transpose(1, 2)

    def lengths(self, lengths: Tensor) -> Tensor:
        """How many vectors sources of these lengths become."""
        return (lengths + 1) // 2


class SourceConfig(Choice):
    """What an encoder-decoder reads."""

    def build(self, vocabulary: int, width: int) -> TokenSource | AudioSource:
        """The embedding; ``vocabulary`` is that of the source, if it is tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class TokenSourceConfig(SourceConfig, kind="tokens"):
    """Tokens of a vocabulary."""

    def build(self, vocabulary: int, width: int) -> TokenSource:
        return TokenSource(vocabulary, width)


@dataclass(frozen=True)
class AudioSourceConfig(SourceConfig, kind="audio"):
    """Mel spectrograms, as in Whisper."""

    mels: int = option(80, "frequency bands of the spectrogram", least=1)

    def build(self, vocabulary: int, width: int) -> AudioSource:
        return AudioSource(self.mels, width)
