"""Labelled examples and the files that hold them: CSV, TSV, JSON lines, CoNLL, CoNLL-U and SQuAD.

The files may come from anywhere: each is a plain file of a limited size, read as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.data.origins.progress import say
from regard.data.records import json_lines, read_text, table
from regard.errors import UserError
from regard.untrusted import check_depth

E = TypeVar("E")


class TextExample(NamedTuple):
    """A text and its class."""

    text: str
    label: str
    group: str  # examples of a group are in one part of the data


class TaggedExample(NamedTuple):
    """The words of a sentence and a tag for each."""

    words: list[str]
    tags: list[str]
    group: str


class AnswerExample(NamedTuple):
    """A question and a passage that contains the answer."""

    question: str
    passage: str
    answer: str  # empty: the passage has no answer
    start: int  # where the answer begins in the passage, in characters
    group: str


def read_texts(path: Path, text: str, label: str) -> list[TextExample]:
    """The examples of a .csv, .tsv or .jsonl file; ``text`` and ``label`` name its columns or fields."""
    rows = json_lines(path) if path.suffix in (".jsonl", ".json") else table(path)
    found = []
    for number, row in rows:
        if missing := [name for name in (text, label) if not isinstance(row.get(name), str | int | float)]:
            names = ", ".join(str(name) for name in row if name is not None)
            raise UserError(
                f"record {number} of {path} has no {missing[0]!r}, but {names}; name the columns: --data.text NAME "
                "--data.label NAME"
            )
        content = str(row[text]).strip()
        if content:
            found.append(TextExample(content, str(row[label]), content))
    return _some(found, path, "text with a label")


def read_tags(path: Path, word: int | None, tag: int | None) -> list[TaggedExample]:
    """The sentences of a CoNLL file, a CoNLL-U file (.conllu) or a .jsonl file with the fields words and tags.

    ``word`` and ``tag`` are the numbers of the columns, from 1. Default: the first and the last, or FORM and UPOS.
    """
    if path.suffix == ".jsonl":
        found = [_tagged_record(path, number, row) for number, row in json_lines(path)]
    else:
        universal = path.suffix == ".conllu"
        found = list(_sentences(path, word or (2 if universal else 1), tag or (4 if universal else 0), universal))
    if len({one.group for one in found}) == 1:  # one document: its sentences are divided
        found = [one._replace(group=" ".join(one.words)) for one in found]
    return _some(found, path, "sentence with tags")


def read_answers(path: Path) -> list[AnswerExample]:
    """The questions of a SQuAD file (version 1 or 2), or of a .jsonl file: question, context and answer."""
    if path.suffix == ".jsonl":
        found = [_answer_record(path, number, row) for number, row in json_lines(path)]
    else:
        try:
            content = json.loads(read_text(path))
            check_depth(content)
            found = list(_squad(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{path} is no SQuAD file ({type(error).__name__}: {error}); see docs/finetuning.md"
            ) from None
    whole = [one for one in found if one.passage[one.start : one.start + len(one.answer)] == one.answer]
    if lost := len(found) - len(whole):
        say(f"{path}: {lost:,} of {len(found):,} answers are not where the file says and are left out")
    return _some(whole, path, "question with an answer")


def _sentences(path: Path, word: int, tag: int, universal: bool) -> Iterator[TaggedExample]:
    """The sentences of a CoNLL file; ``tag`` 0 is the last column. A document is a group."""
    words: list[str] = []
    tags: list[str] = []
    document, separator = 0, "\t" if universal else None
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        columns = line.rstrip("\r").split(separator)
        if universal and line.startswith("#"):
            document += line.startswith("# newdoc")
        elif columns and columns[0] == "-DOCSTART-":
            document += 1
        elif not line.strip():
            if words:
                yield TaggedExample(words, tags, str(document) if document else " ".join(words))
            words, tags = [], []
        elif max(word, tag) > len(columns) or len(columns) < 2:
            raise UserError(f"line {number} of {path} has {len(columns)} column(s); give --data.word and --data.tag")
        elif not (universal and not columns[0].isdigit()):  # no words that are written as one, no empty nodes
            words.append(columns[word - 1])
            tags.append(columns[tag - 1])


def _tagged_record(path: Path, number: int, row: Mapping[str, Any]) -> TaggedExample:
    words, tags = (_texts(row.get(name, row.get(other))) for name, other in (("words", "tokens"), ("tags", "labels")))
    if len(words) != len(tags) or not words:
        raise UserError(f"line {number} of {path} needs two lists of the same length, words and tags")
    return TaggedExample(words, tags, " ".join(words))


def _answer_record(path: Path, number: int, row: Mapping[str, Any]) -> AnswerExample:
    given = _texts([row.get("question"), row.get("context", row.get("passage")), row.get("answer", "")])
    if not given:
        raise UserError(f"line {number} of {path} needs the texts question, context and answer")
    question, passage, answer = given
    start = row.get("start", passage.find(answer))
    return AnswerExample(question, passage, answer, start if type(start) is int and start >= 0 else 0, passage)


def _squad(content: Mapping[str, Any]) -> Iterator[AnswerExample]:
    """The format of Rajpurkar et al. (2016, 2018); of several answers the first is learned."""
    for number, article in enumerate(content["data"]):
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = asked.get("answers") or [{"text": "", "answer_start": 0}]
                answer, start = answers[0]["text"], answers[0]["answer_start"]
                texts = _texts([asked["question"], paragraph["context"], answer])
                if not texts or type(start) is not int or start < 0:
                    raise ValueError("a question, a context or an answer is no text")
                yield AnswerExample(texts[0], texts[1], texts[2], start, str(article.get("title", number)))


def _texts(given: object) -> list[str]:
    """The list, if it is one of texts; else an empty one."""
    return given if isinstance(given, list) and all(isinstance(one, str) for one in given) else []


def _some(found: list[E], path: Path, what: str) -> list[E]:
    if not found:
        raise UserError(f"{path} has no {what}; see docs/finetuning.md for the format")
    return found
