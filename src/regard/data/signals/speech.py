"""Speech with its text: the characters of the text are the targets."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.signals.arrays import Parts
from regard.data.signals.data import SignalChanges, SignalData

SPACE = " "


class SpeechData(SignalData):
    """Speech and texts of the characters of ``alphabet``; the target of a character is its number there."""

    def __init__(
        self,
        parts: Parts,
        alphabet: tuple[str, ...],
        *,
        name: str,
        longest: int | None = None,
        changes: SignalChanges | None = None,
        group_by_length: bool = False,
    ) -> None:
        super().__init__(parts, (), name=name, longest=longest, changes=changes, group_by_length=group_by_length)
        self.alphabet = alphabet

    def answer(self, batch: Any) -> str:
        """What is said in a batch of one row."""
        return "".join(self.alphabet[number] for number in batch.targets[0].tolist() if number >= 0)


def normalized(text: str) -> str:
    """A text as it is spoken: lower case, letters, digits and apostrophes, one space between words.

    >>> normalized("Eén schip -  dát was 't!")
    "eén schip dát was 't"
    """
    kept = (
        c if c.isalnum() or c == "'" else SPACE for c in unicodedata.normalize("NFC", text.lower().replace("’", "'"))
    )
    return SPACE.join("".join(kept).split())


def alphabet_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The characters of some texts in order."""
    return tuple(sorted(set().union(*texts)))


def encode(text: str, alphabet: Sequence[str]) -> NDArray[np.int64]:
    """The numbers of the characters of a text; those that are not in the alphabet are left out."""
    return np.array([alphabet.index(character) for character in text if character in alphabet], np.int64)
