"""Texts, words and questions as an encoder reads them, by an imported tokenizer or by one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizers import PublishedTokenizer, Tokenizer
from regard.data.tokenizers.published import EncodedText
from regard.errors import UserError

#: Which part of a text that is too long is kept: its beginning, its end, or a quarter of the room for the beginning
#: (Sun et al. 2019, sec. 5.3.1: both ends are best).
Keep = Literal["start", "end", "both"]


class InputEncoder:
    """Encodes inputs of at most ``longest`` tokens, special tokens included."""

    def __init__(self, tokenizer: Tokenizer, longest: int, keep: Keep = "start", most: int = 1):
        """``most``: the number of windows of a text; with 1, ``keep`` says which part of a long text is read."""
        self.tokenizer, self.longest, self.keep, self.most = tokenizer, longest, keep, most
        self.kept = self.given = 0  # tokens of all texts so far: those that are read, and all of them

    def windows(self, texts: Sequence[str]) -> list[list[EncodedText]]:
        """Single texts, each as a window or, if it is too long and ``most`` allows it, as several of equal length.

        They have equal distances from the first token to the last one, and each has the special tokens of the ends.
        """
        return [self._counted(one, self._windows(one)) for one in self._encode_texts(texts)]

    def _counted(self, text: EncodedText, windows: list[EncodedText]) -> list[EncodedText]:
        """Windows of a text, of which `kept` and `given` take account; overlapping ones count once."""
        self.given += len(text.ids)
        self.kept += min(len(text.ids), sum(len(one.ids) for one in windows))
        return windows

    def _windows(self, text: EncodedText) -> list[EncodedText]:
        if self.most < 2 or len(text.ids) <= self.longest:
            return [self.shortened(text)]
        begin, end = (int(text.words[place] < 0) for place in (0, -1))  # special tokens
        stop, room = len(text.ids) - end, self.longest - begin - end
        count = min(self.most, -(-(stop - begin) // room))
        starts = np.linspace(begin, stop - room, count).round().astype(np.int64)
        places = [np.r_[:begin, start : start + room, stop : stop + end] for start in starts.tolist()]
        return [EncodedText(*(part[kept] for part in text)) for kept in places]

    def words(self, sentences: Sequence[Sequence[str]]) -> list[EncodedText]:
        """Sentences that are divided into words; ``words`` of the result are their numbers."""
        return [self._counted(one, [self.shortened(one)])[0] for one in self._encode_words(sentences)]

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedText]:
        """Questions and passages; the longer one is cut. The token types of a passage are 1."""
        if isinstance(self.tokenizer, PublishedTokenizer):
            return self.tokenizer.encode_texts(pairs, self.longest)
        found = []
        for first, second in pairs:
            sides = [self._plain(f"{first}\n"), self._plain(second)]
            room = max(self.longest - len(sides[0].ids), 0)
            parts = [*(part[: self.longest] for part in sides[0]), *(part[:room] for part in sides[1])]
            parts[5] = parts[5] + 1  # the token types of the passage
            found.append(EncodedText(*(np.concatenate(both) for both in zip(parts[:4], parts[4:], strict=True))))
        return found

    def shortened(self, text: EncodedText) -> EncodedText:
        """A text without its middle, its end or its beginning; the first and the last token are kept."""
        count = len(text.ids)
        if count <= self.longest:
            return text
        head = {"start": self.longest - 1, "end": 1, "both": max(1, self.longest // 4)}[self.keep]
        kept = np.concatenate((np.arange(head), np.arange(count - (self.longest - head), count)))
        return EncodedText(*(part[kept] for part in text))

    def _encode_texts(self, texts: Sequence[str]) -> list[EncodedText]:
        if isinstance(self.tokenizer, PublishedTokenizer):
            return self.tokenizer.encode_texts(texts)
        return [self._plain(text) for text in texts]

    def _encode_words(self, sentences: Sequence[Sequence[str]]) -> list[EncodedText]:
        if isinstance(self.tokenizer, PublishedTokenizer):
            return self.tokenizer.encode_words(sentences)
        found = []
        for sentence in sentences:
            words = [self._plain(f" {word}") for word in sentence]
            numbers = np.repeat(np.arange(len(words)), [len(word.ids) for word in words])
            columns = [np.concatenate(parts) for parts in zip(*words, strict=True)]
            found.append(EncodedText(*columns)._replace(words=numbers))
        return found

    def _plain(self, text: str) -> EncodedText:
        """By a tokenizer without special tokens."""
        ids = self.tokenizer.encode(text)
        if not len(ids):
            raise UserError("a text is empty; leave it out")
        ends = np.cumsum(self.tokenizer.widths[ids])
        spans = _characters(text)[np.stack((ends - self.tokenizer.widths[ids], ends), axis=1)]
        return EncodedText(ids, np.zeros_like(ids), spans, np.zeros_like(ids))


def _characters(text: str) -> NDArray[np.int64]:
    """The number of the character that each byte of the UTF-8 text belongs to, and the end; [bytes + 1]."""
    widths = [len(character.encode()) for character in text]
    return np.append(np.repeat(np.arange(len(text)), widths), len(text))
