"""Python source: the tokens of Python's grammar; tokens outside the vocabulary are encoded as bytes.

`tokenize` of the standard library gives the positions of names, numbers, strings, operators and comments; between them
are newlines and indentation. The text is only sliced there, so decoding is exact. Strings and comments are split into
words.

A text is processed in blocks; a block ends where two empty lines are followed by an unindented line. After a syntax
error the rest of the block is split into words. So an error does not affect later blocks, and a text of any length can
be encoded in parts.
"""

import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.tokenizers.base import BYTES, JsonObject, LearnedTokenizerConfig, utf8
from regard.data.tokenizers.byte_level import TWICE
from regard.data.tokenizers.byte_tokens import SINGLES, ByteTokens, looked_up
from regard.data.tokenizers.word_split import WORDS, regroup

_BLOCK_END = re.compile(r"(?:\r?\n){3}(?=\S)")
_NO_SOURCE = re.compile(r"\0|\r(?!\n)")  # versions of Python differ in their treatment
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BETWEEN = re.compile(r"(?:\r?\n)+|[^\S\r\n]+|\S+|\r")  # newlines, indentation and spaces, a backslash
_PROSE = ("STRING", "COMMENT")
_LAYOUT = ("NEWLINE", "NL", "INDENT", "DEDENT", "ENDMARKER")
_SIGNS = set(tokenize.EXACT_TOKEN_TYPES) - {"!"}  # a token only within an f-string, and only since Python 3.12


class Python(ByteTokens):
    """Tokens of Python source code; the first 256 are the bytes."""

    pre_tokenizer: ClassVar = {"type": "Python"}  # the library has no such step and refuses the file

    def __init__(self, words: Sequence[bytes]) -> None:
        """``words``: the tokens after the bytes."""
        super().__init__([*SINGLES, *words])
        self._numbers = {word.decode(): BYTES + place for place, word in enumerate(words)}

    @classmethod
    def read(cls, content: JsonObject) -> "Python | None":
        """The tokenizer of a `tokenizer.json`; None if it is of another kind."""
        tokens = looked_up(content, cls.pre_tokenizer)
        try:
            return None if tokens is None else cls(tokens[BYTES:])
        except UnicodeDecodeError:
            return None

    def encode(self, text: str) -> NDArray[np.int64]:
        """The token ids of source code, or of any other text."""
        utf8(text)  # for its error message
        ids: list[int] = []
        for token in split_python(text):
            number = self._numbers.get(token)
            if number is None:
                ids += token.encode()  # a byte is its own id
            else:
                ids.append(number)
        return np.array(ids, dtype=np.int64)

    def cut(self, text: str) -> int:
        """Between two blocks."""
        return cut_blocks(text)


@dataclass(frozen=True)
class PythonConfig(LearnedTokenizerConfig, kind="python"):
    """The most frequent tokens of Python source code."""

    megabytes: int = option(8, "MB at the beginning of the text that the vocabulary is learned from")

    def build(self, pieces: Iterable[str]) -> Python:
        """Count the tokens at the beginning of the text; ties are in alphabetical order."""
        self.check()  # a config built in Python is not checked yet
        counts: Counter[str] = Counter()
        for part in regroup(self.beginning(pieces), cut_blocks):
            counts.update(split_python(part))
        ranked = sorted((-count, token) for token, count in counts.items() if count >= TWICE and len(utf8(token)) > 1)
        return Python([token.encode() for _, token in ranked[: self.vocabulary - BYTES]])


def cut_blocks(text: str) -> int:
    """The start of the last block; 0 if there is only one."""
    place = 0
    for end in _BLOCK_END.finditer(text):
        place = end.end()
    return place


def split_python(text: str) -> Iterator[str]:
    """The text in slices: names, operators, words of strings and comments, newlines, indentation."""
    ends = [0, *(end.end() for end in _BLOCK_END.finditer(text)), len(text)]
    for begin, end in pairwise(ends):
        block = text[begin:end]
        spans, whole = _spans(block)
        at = 0
        for start, stop, prose in spans:
            yield from _BETWEEN.findall(block, at, start)
            yield from WORDS.findall(block, start, stop) if prose else (block[start:stop],)
            at = stop
        yield from (_BETWEEN if whole else WORDS).findall(block, at)


def _spans(block: str) -> tuple[list[tuple[int, int, bool]], bool]:
    """The spans of Python's tokens and whether each is prose; and False if they end at an error."""
    if _NO_SOURCE.search(block):
        return [], False
    lines = _LINE.findall(block)
    offsets = [0, *accumulate(map(len, lines))]
    spans: list[tuple[int, int, bool]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the code do not matter here
        try:
            for token, name in _tokens(lines):
                start, stop = (offsets[row - 1] + column for row, column in (token.start, token.end))
                if not (spans[-1][1] if spans else 0) <= start <= stop <= len(block):
                    return spans, False
                spans.append((start, stop, name in _PROSE))
        except (tokenize.TokenError, SyntaxError, ValueError):
            return spans, False
    return spans, True


def _tokens(lines: list[str]) -> Iterator[tuple[tokenize.TokenInfo, str]]:
    """Python's tokens without layout; an f-string is one token, as before Python 3.12."""
    opened: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(iter(lines).__next__):
        name = tokenize.tok_name[token.type]
        if name == "ERRORTOKEN" or (not opened and not _sound(name, token.string)):
            raise ValueError(f"{token.string!r} is no token of Python")
        if name.endswith("STRING_START"):
            opened.append(token)
        elif name.endswith("STRING_END"):
            token, name = opened.pop()._replace(end=token.end), "STRING"
        if not opened and name not in _LAYOUT:
            yield token, name


def _sound(name: str, string: str) -> bool:
    """Whether a token is valid: since 3.12 a part of the check is left to Python's parser."""
    return string in _SIGNS if name == "OP" else string.isidentifier() if name == "NAME" else True
