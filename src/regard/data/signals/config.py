"""Which sounds an experiment trains on: a built-in source, or recordings of the user's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import IGNORE_INDEX, DataConfig, Example
from regard.data.origins.cache import cache_folder
from regard.data.signals.arrays import Signals
from regard.data.signals.data import SignalChanges, SignalData, array_batch, cut, to_floats
from regard.data.signals.near_duplicates import alike_once, joined_groups
from regard.data.signals.recordings import (
    Recording,
    Samples,
    decode,
    decode_once,
    read_folder,
    read_table,
    sound_files,
    unpack,
)
from regard.data.signals.speech import SpeechData, alphabet_of, encode, normalized
from regard.data.sources import all_sources, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import Tokenizer
from regard.data.translation.near_duplicates import near_once
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig


@dataclass(frozen=True)
class RecordingsConfig(DataConfig):
    """Base class: recordings with a class or a text, divided into parts by groups."""

    form: ClassVar[str]  # what a source has; sources name it

    path: str | None = option(None, "recordings of your own instead of the source; docs/audio.md has the formats")
    source: str = option("", "the recordings to fetch when no path is given; `regard data` lists them")
    rate: int = option(16_000, "samples per second; the model's embed.rate is the same")
    seconds: float = option(10.0, "the longest sound that is read")
    validation: float = option(0.1, "the fraction of the recordings held out for evaluation, in whole groups")
    test: float = option(0.1, "the fraction held out for a final test, in whole groups")
    alike: float = option(0.95, "recordings that sound alike are in one part: from this correlation on; 1: none")
    limit: int | None = option(None, "train on the first recordings of the training part only, this many")
    speed: float = option(0.0, "augmentation: play faster or slower by up to this share")
    gain: float = option(0.0, "augmentation: louder or softer by up to this factor, as a natural logarithm")
    batch: int = option(32, "recordings per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name, least in (("limit", 1), ("batch", 1), ("rate", 1000), ("seconds", 0.05)):
            if (value := vars(self)[name]) is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not 0 <= self.speed < 1 or not 0 <= self.gain < 10:
            raise ValueError("speed is a share from 0 to 1, and gain a number from 0 to 10")
        if not 0 < self.alike <= 1:
            raise ValueError(f"alike is a correlation above 0 and at most 1, not {self.alike}")
        if self.path is None and find_source(self.source).labels != self.form:
            known = ", ".join(name for name, source in all_sources().items() if source.labels == self.form)
            raise ValueError(f"source '{self.source}' has no {self.form}; with {self.form} are: {known}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SignalData:
        """Read, decode and divide the recordings; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        cache = cache or cache_folder()
        if self.path is not None:
            recordings = self.read(Path(self.path).expanduser())
            samples, key = decode(recordings, self.rate), None
        else:
            source = find_source(self.source)
            recordings = unpack(source.fetch(cache))
            samples, key = decode_once(recordings, self.rate, source.sha256, cache), source.sha256
        pairs = alike_once(samples, self.rate, self.alike, key, cache)
        groups = joined_groups([one.group for one in recordings], pairs)
        train, validation, test = divide(groups, self.validation, self.test)
        return self.divided(recordings, samples, (train[: self.limit], validation, test), cache)

    @abstractmethod
    def read(self, path: Path) -> list[Recording]:
        """Recordings of the user's own."""

    @abstractmethod
    def divided(
        self, recordings: list[Recording], samples: list[Samples], parts: tuple[list[int], ...], cache: Path
    ) -> SignalData:
        """The data, from all recordings and the numbers of those in each part."""

    @property
    def longest(self) -> int:
        """Samples of the longest sound that is read."""
        return round(self.seconds * self.rate)

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        from regard.data.signals.picture import sound_picture

        return sound_picture(batch.inputs[0, :, 0], weights[0].tolist(), self.rate)

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        """A file of sound, or those below a folder; of a longer one the middle."""
        if model.reads != "signals":
            raise UserError(f"a {model.kind} reads no sounds")
        files = sound_files(path) if path.is_dir() else [path]
        recordings = [Recording(str(file), "", "", file) for file in files]
        sounds = [cut(to_floats(one), self.longest, 0.5) for one in decode(recordings, self.rate)]
        none = (np.full(1, IGNORE_INDEX),)
        return [Example(str(file), array_batch([one], none, True)) for file, one in zip(files, sounds, strict=True)]


@dataclass(frozen=True)
class SoundsConfig(RecordingsConfig, kind="sounds"):
    """Recordings and their classes: a source, or a folder with a folder for each class."""

    form = "sounds"

    source: str = option("phone-prompts", "the recordings to fetch when no path is given; `regard data` lists them")
    rate: int = option(8000, "samples per second; the model's embed.rate is the same")
    seconds: float = option(4.0, "the longest sound that is read")
    crop: bool = option(True, "augmentation: of longer sounds read any part, not the middle")

    def read(self, path: Path) -> list[Recording]:
        return read_folder(path)

    def divided(
        self, recordings: list[Recording], samples: list[Samples], parts: tuple[list[int], ...], cache: Path
    ) -> SignalData:
        labels = tuple(sorted({one.label for one in recordings}))
        numbers = [labels.index(one.label) for one in recordings]
        train, validation, test = (Signals.of((samples[n] for n in part), (numbers[n] for n in part)) for part in parts)
        changes, name = SignalChanges(self.crop, self.speed, self.gain), self.path or self.source
        return SignalData((train, validation, test), labels, name=name, longest=self.longest, changes=changes)


@dataclass(frozen=True)
class SpeechConfig(RecordingsConfig, kind="speech"):
    """Recordings and what is said in them: a source, or a table with the columns file and text."""

    form = "speech"

    source: str = option("dutch-fish", "the recordings to fetch when no path is given; `regard data` lists them")
    group_by_length: bool = option(True, "a training batch has recordings of about the same length: little padding")
    near: float = option(80.0, "leave out held-out texts whose chrF with a training text is above this; 100: none")

    def read(self, path: Path) -> list[Recording]:
        return read_table(path)

    def divided(
        self, recordings: list[Recording], samples: list[Samples], parts: tuple[list[int], ...], cache: Path
    ) -> SpeechData:
        texts = [normalized(one.label) for one in recordings]
        # A longer sound cannot be cut, as nobody knows which words are in its middle.
        fits = [len(sound) <= self.longest and bool(text) for sound, text in zip(samples, texts, strict=True)]
        train, *held_out = ([n for n in part if fits[n]] for part in parts)
        if self.near < 100:
            known = [texts[n] for n in train]
            held_out = [
                _without(part, near_once([texts[n] for n in part], known, self.near, cache)) for part in held_out
            ]
        alphabet = alphabet_of(texts[n] for part in (train, *held_out) for n in part)

        def signals(part: Sequence[int]) -> Signals:
            return Signals(tuple(samples[n] for n in part), tuple(encode(texts[n], alphabet) for n in part))

        changes, name = SignalChanges(False, self.speed, self.gain), self.path or self.source
        whole = (signals(train), signals(held_out[0]), signals(held_out[1]))
        return SpeechData(
            whole, alphabet, name=name, longest=self.longest, changes=changes, group_by_length=self.group_by_length
        )


def _without(part: list[int], dropped: NDArray[np.bool_]) -> list[int]:
    return [number for number, drop in zip(part, dropped, strict=True) if not drop]
