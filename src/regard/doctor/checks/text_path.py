"""Batches of text against the text itself: decoded windows are in it, byte by byte."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from regard.data import TextBatch, TextConfig, TextData
from regard.data.origins.cache import cache_folder
from regard.data.texts.text_file import TextFile
from regard.data.tokenizers.base import BYTES, LearnedTokenizerConfig
from regard.doctor import Findings
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Examples
from regard.errors import UserError

READ = 2**24  # bytes of a text that are read at most
ROWS, SHORTEST = 24, 16  # rows of each part that are looked up, and bytes of them at least
MISSING = 0.1  # the share of rows that are not in the text
BATCHES = 16  # whose ids are counted
WIDTHS = (7, 8, 15, 16)  # bits of narrow types of arrays
#: Token ids that a vocabulary learned from the text has, and that never occur in it; tokens for each id, at least.
UNUSED, TIMES = 0.5, 8
TOKENS = 2**19
NEW, LEAST = 0.01, 2000  # the share of bytes that only the validation text has; bytes of each text


class TextPath(DataCheck):
    kind, description = "text_fault", "batches are not the text"
    rank = 0
    follows = ("token_range",)

    def judge(self, examples: Examples) -> Findings:
        data, config = examples.data, self.run.experiment.data
        if not isinstance(data, TextData) or not isinstance(config, TextConfig) or not data.tokenizer.lossless:
            return
        with suppress(UserError, OSError):  # the text is not there any more
            texts = config.texts(cache_folder())
            found = list(self._windows(data, texts, config.tokenizer.raw))
            found = found or list(self._unseen(texts, config.tokenizer.raw))
            yield from found or self._unused(data, config)

    def _unseen(self, texts: dict[str, TextFile], raw: bool) -> Findings:
        """Bytes of the validation text that the training text does not have, beyond what its own second half has."""
        if "validation" not in texts:
            return
        (own, _), (other, _) = (content(texts[part], raw) for part in ("train", "validation"))
        half = len(own) // 2
        if min(half, len(other)) < LEAST:
            return
        usual, share = (unseen(*parts) for parts in ((own[:half], own[half:]), (own, other)))
        if share > NEW + 3 * usual:
            evidence = f"{share:.1%} of its bytes never occur in the training text, and {usual:.1%} of the second half "
            evidence += "of the training text do not occur in the first"
            case = unseen(own.lower(), other.lower()) < share / 4
            cause = "one text is in lower case, the other is not" if case else "the two texts were prepared differently"
            change = "prepare --data.path and --data.validation_path by the same function"
            yield self.finding("validation text", evidence, cause, change)

    def _windows(self, data: TextData, texts: dict[str, TextFile], raw: bool) -> Findings:
        """One finding of all parts whose windows are not in their text."""
        whole, complete = content(texts["train"], raw)
        batches = [row for number in range(BATCHES) for row in windows(self.run.batch(number))]
        given = {"training batches": (batches, whole if complete else None)}
        if data.parts.validation.size:
            other, complete = (whole, complete) if (text := texts.get("validation")) is None else content(text, raw)
            rows = list(windows(next(iter(data.validation_batches(ROWS)))))
            given["validation"] = rows, other if complete else None
        found = {name: self._missing(data, rows, text) for name, (rows, text) in given.items() if text is not None}
        lost = {name: one for name, one in found.items() if one is not None}
        first = next(iter(data.sliding_batches("train", 4, data.context)), None)
        beginning = None if first is None else self._beginning(data, list(windows(first)), whole)
        if not lost and beginning is None:
            return
        cause = next((one[1] for one in lost.values() if one[1]), None)
        evidence = [f"{one[0]} of the {name}" for name, one in lost.items()] + ([beginning] if beginning else [])
        highest, size = int(max(row.max() for row in batches)), data.tokenizer.size
        count, narrow = sum(map(len, batches)), next((width for width in WIDTHS if highest < 2**width), None)
        if cause is None and narrow is not None and 2**narrow < size and count > 2 * size:
            evidence.append(f"no token of {count:,} has an id above {highest}, of {size:,}")
            cause = f"token ids are cut to {narrow} bits, the type of an array that is too narrow for them"
        cause = cause or "tokens are changed after they were read, or the text was encoded by another tokenizer"
        where = f"token ids of the {' and '.join(lost) or 'training text'}"
        yield self.finding(
            where, "; ".join(evidence), cause, "keep ids as the tokenizer of the run encodes them, in 32 bits"
        )

    def _missing(self, data: TextData, rows: list[NDArray[np.int64]], text: bytes) -> tuple[str, str | None] | None:
        """Rows whose bytes are nowhere in the text, and why."""
        pieces = [decoded(data, row) for row in rows[:ROWS]]
        known = [piece for piece in pieces if piece is None or len(piece) >= min(SHORTEST, len(text))]
        lost = [piece for piece in known if piece is None or piece not in text]
        if len(known) < 4 or len(lost) <= MISSING * len(known):
            return None
        evidence, piece = (
            f"{len(lost)} of {len(known)} rows, decoded, are not in the text",
            next(filter(None, lost), None),
        )
        if piece is None:
            return evidence, "ids are no tokens of the tokenizer"
        return f"{evidence}, such as {piece[:24].decode('utf-8', 'replace')!r},", self._cause(piece, text)

    def _cause(self, piece: bytes, text: bytes) -> str | None:
        """A change of a row that explains why it is not in the text."""
        lowered = piece.lower()
        if lowered in text.lower():
            return "upper and lower case differ from those of the text"
        if piece[::-1] in text:
            return "the text is read backwards"
        squeezed = b"".join(piece.split())
        if len(squeezed) >= SHORTEST and squeezed in b"".join(text.split()):
            return "white space is changed or lost"
        return None

    def _beginning(self, data: TextData, rows: list[NDArray[np.int64]], text: bytes) -> str | None:
        """Where the first windows of the training part are not the beginning of the text."""
        pieces = [decoded(data, row) for row in rows]
        start = b"".join(piece or b"" for piece in pieces)
        count = min(len(start), len(text))
        if None in pieces or start[:count] == text[:count]:
            return None
        same = next(n for n in range(count) if start[n] != text[n])
        ours, theirs = (part[same : same + 16] for part in (start, text))
        return f"the training part has {ours!r} at byte {same}, and the text {theirs!r}"

    def _unused(self, data: TextData, config: TextConfig) -> Findings:
        """Ids of a vocabulary that was learned from this text, and that never occur in it."""
        if not isinstance(config.tokenizer, LearnedTokenizerConfig) or self.run.experiment.init is not None:
            return
        size = data.tokenizer.size
        own = size - BYTES
        if own < 64 or not TIMES * size < data.train_count < TOKENS:
            return
        seen = np.zeros(size, bool)
        for batch in data.sliding_batches("train", 256, data.context):
            ids = batch.inputs.numpy()
            seen[ids[(ids >= 0) & (ids < size)]] = True
        unused = ~seen[BYTES:]
        if unused.mean() > UNUSED:
            highest = int(np.flatnonzero(seen).max())
            evidence = (
                f"{unused.sum():,} of its {own:,} learned tokens never occur in the training text; the highest id "
            )
            evidence += f"is {highest:,}, of {size:,}"
            cause = "the vocabulary was learned from another text, or ids are changed"
            yield self.finding("vocabulary", evidence, cause, "learn the tokenizer from the training text")


def unseen(known: bytes, text: bytes) -> float:
    """The share of a text whose bytes do not occur in another one."""
    kinds = np.frombuffer(known, np.uint8), np.frombuffer(text, np.uint8)
    counts = [np.bincount(part, minlength=256) for part in kinds]
    return float(counts[1][counts[0] == 0].sum() / max(len(text), 1))


def windows(batch: object) -> Iterator[NDArray[np.int64]]:
    """The tokens of each row of a batch that count, from the first input on."""
    assert isinstance(batch, TextBatch)
    for inputs, targets in zip(batch.inputs.cpu().numpy(), batch.targets.cpu().numpy(), strict=True):
        kept = np.flatnonzero(targets >= 0)
        if len(kept):
            yield inputs[: kept[-1] + 1]


def decoded(data: TextData, row: NDArray[np.int64]) -> bytes | None:
    """The bytes of tokens; None if one of them is no token."""
    try:
        return data.tokenizer.decode_bytes(row)
    except UserError:
        return None


def content(text: TextFile, raw: bool) -> tuple[bytes, bool]:
    """The beginning of a text as bytes, and whether it is all of it."""
    pieces: Iterable[bytes] = text.raw_pieces() if raw else (piece.encode() for piece in text.pieces())
    found, size = [], 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > READ:
            return b"".join(found), False
    return b"".join(found), True
