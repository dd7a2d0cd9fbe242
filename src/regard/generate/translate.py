"""Translating lines with a trained run: lines become tokens, batches of like lengths are searched, text comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard.config import load
from regard.data import Bytes, Characters, DataConfig
from regard.data.translation.pairs import PairsConfig, Specials
from regard.errors import UserError
from regard.generate.beam import Search, beam_search
from regard.generate.load import load_writer
from regard.generate.sample_seq2seq import sample_seq2seq
from regard.generate.sampling import Sampling
from regard.generate.seq2seq import Hypothesis, Rules

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import PairData
    from regard.runs import Run

AHEAD = 16  # batches that are sorted by length together; their lines come out in order


class Line(NamedTuple):
    """A line to translate, as the model reads it."""

    text: str
    tokens: list[int]  # with the end mark; that alone for an empty line
    cut: int  # tokens beyond the model's context, left out
    unknown: tuple[str, ...]  # words that no token of the vocabulary is a part of, or characters that were left out

    @property
    def empty(self) -> bool:
        """Whether there is nothing to translate."""
        return len(self.tokens) == 1


class Text(NamedTuple):
    """One translation of a line."""

    text: str  # on one line
    found: Hypothesis


class Translated(NamedTuple):
    """A line with its translations, best first; none for an empty line."""

    line: Line
    texts: list[Text]

    @property
    def text(self) -> str:
        """The best one; nothing for an empty line."""
        return self.texts[0].text if self.texts else ""


@dataclass(frozen=True)
class Translator:
    """A model that translates: everything that decides a translation but its line."""

    model: Any
    tokenizer: Tokenizer
    specials: Specials
    context: int
    lower: bool = False
    way: Search | Sampling = field(default_factory=Search)
    nbest: int = 1
    least: int = 0
    most: int | None = None  # None: as many tokens as the model's context
    seed: int = 1
    batch: int = 64
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"at least 1 line must be translated at once, not {self.batch}")
        if self.nbest < 1:
            raise UserError(f"at least 1 translation must be asked for, not {self.nbest}")
        if isinstance(self.way, Search) and self.nbest > self.way.beams:
            raise UserError(f"{self.nbest} translations need as many beams, and there are {self.way.beams}; use more")
        if self.most is not None and not 1 <= self.most <= self.context:
            raise UserError(f"a translation has 1 to {self.context} tokens in this model, not {self.most}")

    def read(self, text: str) -> Line:
        """What of a line the model will see."""
        text = text.strip()
        seen = text.lower() if self.lower else text
        try:
            ids, left_out = self.tokenizer.encode(seen).tolist(), ()
        except UserError:  # a tokenizer of characters does not know them all
            ids, left_out = self._known(seen)
        room = self.context - 1
        return Line(text, [*ids[:room], self.specials.end], max(0, len(ids) - room), left_out or self._unknown(seen))

    def translate(self, lines: Sequence[str]) -> Iterator[Translated]:
        """Each line with its translations, in order; which ones are searched together changes none of them."""
        for first in range(0, len(lines), AHEAD * self.batch):
            read = [self.read(text) for text in lines[first : first + AHEAD * self.batch]]
            order = sorted((i for i, line in enumerate(read) if not line.empty), key=lambda i: len(read[i].tokens))
            made: dict[int, list[Text]] = {}
            for start in range(0, len(order), self.batch):
                some = order[start : start + self.batch]
                for number, found in zip(some, self._search([read[i].tokens for i in some]), strict=True):
                    made[number] = [Text(self._spelled(one), one) for one in found]
            for number, line in enumerate(read):
                yield Translated(line, made.get(number, []))

    def _search(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        longest = max(map(len, sources))
        rows = [ids + [self.specials.pad] * (longest - len(ids)) for ids in sources]
        source = torch.tensor(rows, device=self.device)
        lengths = torch.tensor([len(ids) for ids in sources], device=self.device)
        rules = Rules(self.specials, self.least, self.most or self.context)
        if isinstance(self.way, Search):
            return beam_search(self.model, source, lengths, rules, self.way, self.nbest)
        return sample_seq2seq(self.model, source, lengths, rules, self.way, samples=self.nbest, seed=self.seed)

    def _spelled(self, found: Hypothesis) -> str:
        return " ".join(self.tokenizer.decode(found.tokens).split())

    def _unknown(self, text: str) -> tuple[str, ...]:
        """Words with letters of which the vocabulary has no part: they are spelled byte by byte."""
        if isinstance(self.tokenizer, Bytes | Characters):
            return ()  # whose tokens are all so short
        widths = self.tokenizer.widths

        def strange(word: str) -> bool:
            ids = self.tokenizer.encode(f" {word}")
            return len(ids) > 2 and bool((widths[ids] == 1).all())

        words = dict.fromkeys(word.strip(".,;:!?\"'()[]{}") for word in text.split())
        return tuple(word for word in words if any(map(str.isalpha, word)) and strange(word))

    def _known(self, text: str) -> tuple[list[int], tuple[str, ...]]:
        """The tokens of the characters that the tokenizer knows, and those that it does not."""
        ids, left_out = [], {}
        for character in text:
            try:
                ids += self.tokenizer.encode(character).tolist()
            except UserError:
                left_out[character] = None
        return ids, tuple(left_out)


class Trained(NamedTuple):
    """What a run gives a `Translator`."""

    model: Any
    tokenizer: Tokenizer
    specials: Specials
    config: PairsConfig
    context: int
    step: int
    data_sha256: str | None

    def translator(self, **settings: Any) -> Translator:
        """With these settings of `Translator`."""
        return Translator(self.model, self.tokenizer, self.specials, self.context, lower=self.config.lower, **settings)

    def data(self) -> PairData:
        """The pairs that the run was trained on; a UserError if they are others by now."""
        data = self.config.build(self.context)
        if self.data_sha256 not in (None, data.sha256):
            raise UserError(f"{data.name} is not what this run was trained on; put the old files back")
        return data


def load_trained(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> Trained:
    """The checkpoint of a step, or else the newest, of a run that translates."""
    table = run.config.get("data", {})
    kind = table.get("kind")
    if kind != "pairs":
        raise UserError(
            f"the run {run.path} was trained on {kind or 'text'} and does not translate; `regard generate` writes "
            "with it, and `regard recipes` lists runs that translate"
        )
    config = load(DataConfig, table, source=str(run.path / "config.toml"))
    assert isinstance(config, PairsConfig)
    model, tokenizer, reached, sha256 = load_writer(run, device, step)
    return Trained(model, tokenizer, Specials.after(tokenizer.size), config, model.config.context, reached, sha256)
