"""Writing: prompts to texts, streamed, each row until its stop string or its last token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from regard.errors import UserError
from regard.generate.decode import Decoding, Steppable
from regard.generate.sampling import Sampling
from regard.generate.stops import Stops

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """A row to write: the tokens to go on from, and which stream of draws decides it."""

    tokens: tuple[int, ...]
    stream: int = 0


@dataclass
class Pace:
    """How long it took, reading prompts and writing apart. Reading ends with the first token of each row."""

    read: int = 0
    reading: float = 0.0
    written: int = 0  # all tokens of all rows
    first: int = 0  # those of them that came with the reading
    writing: float = 0.0

    def __str__(self) -> str:
        def told(tokens: int, timed: int, seconds: float) -> str:
            rate = f" at {timed / seconds:,.0f}/s" if timed and seconds else ""
            return f"{tokens:,} token{'' if tokens == 1 else 's'}{rate}"

        read = told(self.read, self.read, self.reading)
        return f"read {read}, then wrote {told(self.written, self.written - self.first, self.writing)}"


@dataclass
class Row:
    """What has been written after one prompt."""

    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    stop: str | None = None  # the stop string that ended it
    done: bool = False

    @property
    def text(self) -> str:
        """All of it, without the stop string."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class TextGenerator:
    """A model that writes: everything that decides a text but its prompt."""

    model: Steppable
    tokenizer: Tokenizer
    context: int
    sampling: Sampling
    count: int = 500
    seed: int = 1
    stops: tuple[str, ...] = ()
    batch: int = 64
    every: int = 1  # after how many tokens the host looks at them: 1 streams, more keeps a GPU from waiting
    device: torch.device | str = "cpu"
    compiled: bool = False  # on a GPU: a minute at the beginning, then several times faster
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"at least 1 token must be written, not {self.count}")
        if self.batch < 1:
            raise UserError(f"at least 1 row must be written at once, not {self.batch}")
        if not all(self.stops):
            raise UserError("a stop string is empty; give at least one character")

    def write(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str, Row]]:
        """Yield (number of the prompt, new text, its row) as texts grow; at a row's end once with ``row.done``.

        At most ``batch`` rows are written at once; which ones changes nothing in any text.
        """
        for first in range(0, len(prompts), self.batch):
            for number, text, row in self._write(prompts[first : first + self.batch]):
                yield first + number, text, row

    def texts(self, prompts: Sequence[Prompt]) -> list[Row]:
        """The finished rows."""
        rows = {number: row for number, _, row in self.write(prompts)}
        return [rows[number] for number in range(len(prompts))]

    def _write(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str, Row]]:
        began = time.perf_counter()
        decoding = Decoding(
            self.model,
            [prompt.tokens for prompt in prompts],
            self.count,
            self.sampling,
            seed=self.seed,
            streams=[prompt.stream for prompt in prompts],
            context=self.context,
            device=self.device,
            compiled=self.compiled,
        )
        self.pace.read += sum(min(len(tokens), self.context) for tokens in {prompt.tokens for prompt in prompts})
        rows = [_Growing(number, self) for number in range(len(prompts))]
        while True:
            first, left = decoding.made == 0, self.count - decoding.made
            # The first token comes alone: with it the prompts are read.
            steps = 1 if first else min(self.every, left)
            for _ in range(steps):
                decoding.next()
            block = decoding.written[:, -steps:].tolist()
            if first:
                self.pace.reading += time.perf_counter() - began
                self.pace.first += len(rows)
            else:
                self.pace.writing += time.perf_counter() - began
            for growing, tokens in zip(rows, block, strict=True):
                if not growing.done:
                    before = growing.tokens
                    text = growing.feed(tokens, last=steps == left)
                    self.pace.written += growing.tokens - before
                    if text or growing.done:
                        yield growing.number, text, growing
            going = [place for place, row in enumerate(rows) if not row.done]
            if not going:
                return
            began = time.perf_counter()
            # Rarely, since it copies the state; and never where it would be compiled again for fewer rows.
            if 2 * len(going) <= len(rows) and not self.compiled:
                decoding.keep(going)
                rows = [rows[place] for place in going]


class _Growing(Row):
    """A row while it grows."""

    def __init__(self, number: int, author: TextGenerator):
        super().__init__()
        self.number = number
        self._stream, self._stops = author.tokenizer.stream(), Stops(author.stops)

    def feed(self, tokens: list[int], last: bool) -> str:
        """Take in tokens up to a stop string; gives the new text."""
        new = []
        for token in tokens:
            self.tokens += 1
            new.append(self._stops.feed(self._stream.feed([token])))
            if self._stops.found is not None:
                break
        else:
            if last:
                new += [self._stops.feed(self._stream.end()), self._stops.end()]
        self.stop = self._stops.found
        self.done = last or self.stop is not None
        text = "".join(new)
        if text:
            self.pieces.append(text)
        return text
