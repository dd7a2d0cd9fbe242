"""The tokenizer loses nothing: text to numbers and back is the same text, or a sentence that says why not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.errors import UserError
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "decode(encode(text)) is the text, or a UserError"
TEXTS = ("", " ", "a", "  two  spaces ", "a\nb\r\nc\td\x00e", "Capitals AND small", "naïve café, e\u0301 and \u00e9")
TEXTS += (
    "12,345.67 + 8 = ?",
    "don't  stop -- now...",
    "中文 العربية Ελληνικά עברית",
    "👩‍👩‍👧 ﬁ Ω ½ \u200b\ufeff",
    "\ud800 alone",
)
TEXTS += ("<s> </s> <pad> [MASK] <|endoftext|> ▁_Ġ", "\ufffd")
WIDTH = 40  # characters of a text that are shown


def judge(subject: Subject) -> Verdict:
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return unasked("no tokenizer was given")
    refused, asked, size = 0, 0, getattr(tokenizer, "size", None)
    for text in [*TEXTS, *_own(subject)]:
        asked += 1
        try:
            ids = tokenizer.encode(text)
        except UserError:
            refused += 1
            continue
        back = tokenizer.decode(ids)
        if back != text:
            return fails(_lost(text, back))
        numbers = np.asarray(ids).reshape(-1)
        limit = min(size or subject.vocabulary, subject.vocabulary)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < limit):
            return fails(f"{text[:WIDTH]!r} has the number {numbers.max()}, but the model knows {limit}")
        if hasattr(tokenizer, "stream"):
            stream = tokenizer.stream()
            flowed = "".join([*(stream.feed([number]) for number in numbers.tolist()), stream.end()])
            if flowed != text:
                return fails(f"token by token: {_lost(text, flowed)}")
    return holds(f"{asked - refused} texts come back as they were; {refused} were refused in words")


def _lost(text: str, back: str) -> str:
    place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    return f"{text[:WIDTH]!r} comes back as {back[:WIDTH]!r}: first at character {place}, {text[place : place + 1]!r}"


def _own(subject: Subject) -> Iterator[str]:
    """Every token the tokenizer has, in pieces that are whole text; and the text that the model is trained on."""
    tokenizer, size = subject.tokenizer, getattr(subject.tokenizer, "size", None)
    if size is not None:
        for start in range(0, min(size, 4096), 64):
            text = tokenizer.decode(np.arange(start, min(start + 64, size)))
            if "\ufffd" not in text:
                yield text
    if subject.data is not None and subject.data.tokenizer is tokenizer:
        batch = subject.data.batch(0, seed=1, size=_size(subject))
        for row in batch.inputs[:4].tolist():
            text = tokenizer.decode([number for number in row if size is None or number < size])
            if "\ufffd" not in text:
                yield text


def _size(subject: Subject) -> int:
    return max(subject.data.smallest_batch, 4)
