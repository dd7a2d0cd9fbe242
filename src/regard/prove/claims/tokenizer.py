"""The tokenizer is lossless: decoding the tokens of a text gives the text, or encoding it is a UserError."""

from collections.abc import Iterator

import numpy as np

from regard.data import Tokenizer
from regard.errors import UserError
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable

TEXTS = (
    *("", " ", "a", "  two  spaces ", "a\nb\r\nc\td\x00e", "Capitals AND small", "naïve café, e\u0301 and \u00e9"),
    *("12,345.67 + 8 = ?", "don't  stop -- now...", "中文 العربية Ελληνικά עברית", "👩‍👩‍👧 ﬁ Ω ½ \u200b\ufeff"),
    *("\ud800 alone", "<s> </s> <pad> [MASK] <|endoftext|> ▁_Ġ", "\ufffd"),
)
WIDTH = 40  # characters of a text in the evidence


@claim("tokenizer", "decode(encode(text)) is the text, or a UserError", order=90)
def tokenizer(subject: ModelUnderTest) -> ClaimResult:
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return not_applicable("no tokenizer was given")
    if not tokenizer.lossless:
        return not_applicable("the tokenizer of this imported encoder is not lossless")
    refused, texts = 0, [*TEXTS, *_own_texts(subject, tokenizer)]
    for text in texts:
        try:
            ids = np.asarray(tokenizer.encode(text)).reshape(-1)
        except UserError:
            refused += 1
            continue
        if (decoded := tokenizer.decode(ids)) != text:
            return fails(_difference(text, decoded))
        limit = min(tokenizer.size, subject.token_ids)
        if ids.size and not (ids.min() >= 0 and ids.max() < limit):
            return fails(f"{text[:WIDTH]!r} has the token {ids.max()}, but there are {limit}")
        stream = tokenizer.stream()
        streamed = "".join([*(stream.feed([token]) for token in ids.tolist()), stream.end()])
        if streamed != text:
            return fails(f"token by token: {_difference(text, streamed)}")
    return holds(f"{len(texts) - refused} texts are decoded to themselves; {refused} were refused with a message")


def _difference(text: str, decoded: str) -> str:
    pairs = enumerate(zip(text, decoded, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(decoded)))
    where = f"first at character {place}, {text[place : place + 1]!r}"
    return f"{text[:WIDTH]!r} is decoded to {decoded[:WIDTH]!r}: {where}"


def _own_texts(subject: ModelUnderTest, tokenizer: Tokenizer) -> Iterator[str]:
    """Every token of the tokenizer, in pieces that are valid text, and some of the training text."""
    size, data = tokenizer.size, subject.data
    pieces = [np.arange(start, min(start + 64, size)) for start in range(0, min(size, 4096), 64)]
    if data is not None and data.tokenizer is tokenizer:
        rows = data.batch(0, seed=1, size=max(data.smallest_batch, 4)).inputs[:4]
        pieces += [row[row < size].numpy() for row in rows]
    for ids in pieces:
        text = tokenizer.decode(ids)
        if "\ufffd" not in text:
            yield text
