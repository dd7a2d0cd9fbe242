"""Transcription of speech by Whisper (Radford et al. 2023): tokens for language and task, then the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.config import nearest
from regard.data import DataConfig, ImportedConfig, Specials
from regard.data.audio import HOP, RATE, log_mel
from regard.data.tokenizers.published import PublishedTokenizer
from regard.errors import UserError
from regard.generate.beam import BeamSearch
from regard.generate.constraints import OutputConstraints
from regard.generate.load import load_model
from regard.generate.sampling import Sampling
from regard.generate.translation import decode_seq2seq
from regard.models import Transformer
from regard.models.device import parameter_device
from regard.nn.source import AudioSourceConfig
from regard.runs import Run

ENGLISH = 51_865  # models with a smaller vocabulary read English only, and no tokens for language and task


class Speech(NamedTuple):
    """The text of one window of sound."""

    begin: float  # in seconds
    end: float
    language: str | None  # None: the model reads one language only
    tokens: list[int]
    text: str


@dataclass(frozen=True)
class Transcriber:
    """Transcribes sound, window by window of the length that the encoder reads (30 s in Whisper)."""

    model: Transformer
    tokenizer: PublishedTokenizer
    config: ImportedConfig
    language: str | None = None  # such as "en"; None: detected in each window
    translate: bool = False  # into English
    beams: int = 1
    rate: int = RATE  # samples per second that it reads

    def __post_init__(self) -> None:
        if self.language is not None and self.languages and self.language not in self.languages:
            near = nearest(self.language, self.languages)
            hint = f"did you mean {near}?" if near else f"it reads {', '.join(sorted(self.languages))}"
            raise UserError(f"the model has no language {self.language!r}; {hint}")
        if self.translate and not self.languages:
            raise UserError("this model reads English only, so there is nothing to translate; leave the option out")

    @cached_property
    def languages(self) -> dict[str, int]:
        """The codes of the languages and their tokens; none if the model reads one language only."""
        if self.model.config.vocabulary < ENGLISH:
            return {}
        names = {name: re.fullmatch(r"<\|([a-z]{2,3})\|>", name) for name in self.tokenizer.tokens}
        return {found[1]: self._token(name) for name, found in names.items() if found is not None}

    @property
    def window(self) -> int:
        """Samples that the encoder reads at a time: two frames for each of its positions."""
        return 2 * HOP * (self.model.config.source_context or self.model.config.context)

    @torch.inference_mode()
    def transcribe(self, samples: Tensor) -> Iterator[Speech]:
        """The text of samples [N] at 16 kHz. Windows follow each other; a word at the end of one may be cut."""
        source = self.model.config.source
        assert isinstance(source, AudioSourceConfig)
        device = parameter_device(self.model)
        for first in range(0, len(samples), self.window):
            piece = samples[first : first + self.window]
            sound = log_mel(piece, source.mels, self.window / RATE)[None].to(device)
            lengths = torch.tensor([sound.shape[-1]], device=device)
            prefix, language = [self.specials.begin], None
            if self.languages:
                language = self.language or self.detect(sound, lengths)
                prefix += [
                    self.languages[language],
                    self._token(f"<|{'translate' if self.translate else 'transcribe'}|>"),
                ]
            constraints = OutputConstraints(
                self.model.config.context - len(prefix),
                prefix=(*prefix, self._token("<|notimestamps|>")),
                end=self.specials.end,
                forbidden=self.config.forbidden,
                forbidden_first=self.config.forbidden_first,
            )
            strategy = BeamSearch(self.beams) if self.beams > 1 else Sampling(temperature=0.0)
            tokens = decode_seq2seq(self.model, sound, lengths, constraints, strategy)[0][0].tokens
            text = self.tokenizer.decode([token for token in tokens if token < self.tokenizer.size]).strip()
            yield Speech(first / RATE, (first + len(piece)) / RATE, language, tokens, text)

    def detect(self, sound: Tensor, lengths: Tensor) -> str:
        """The likeliest language of a spectrogram [1, M, T]."""
        state = self.model.start(1, 1, source=sound, source_lengths=lengths)
        logits, _ = self.model.step(torch.tensor([[self.specials.begin]], device=sound.device), state)
        return max(self.languages, key=lambda code: float(logits[0, -1, self.languages[code]]))

    @property
    def specials(self) -> Specials:
        """Where a transcript begins and ends."""
        assert self.config.specials is not None
        return self.config.specials

    def _token(self, name: str) -> int:
        number = self.tokenizer.tokens.get(name)
        if number is None or number >= self.model.config.vocabulary:
            raise UserError(f"the tokenizer of the model has no token {name}; import a Whisper with its tokenizer.json")
        return number


def load_transcriber(
    run: Run,
    device: torch.device | str = "cpu",
    step: int | None = None,
    *,
    language: str | None = None,
    translate: bool = False,
    beams: int = 1,
) -> Transcriber:
    """A transcriber with the model of a run, which must be an imported one that reads sound."""
    config = run.load(DataConfig, "data") if run.table("data").get("kind") == "imported" else None
    loaded = load_model(run, device, step)
    model, tokenizer = loaded.model, loaded.tokenizer
    if not isinstance(model, Transformer) or not isinstance(model.config.source, AudioSourceConfig):
        raise UserError(f"the model of {run.path} reads no sound; give --run whisper-tiny")
    if (
        not isinstance(config, ImportedConfig)
        or config.specials is None
        or not isinstance(tokenizer, PublishedTokenizer)
    ):
        raise UserError(f"{run.path} is no imported Whisper with its tokenizer; import one: regard import whisper-tiny")
    return Transcriber(model, tokenizer, config, language, translate, beams)
