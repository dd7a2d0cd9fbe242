"""The byte pairs of docs/tokenizers.md, run as they stand there, against those that are learned by the library."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from tokenizer_kit import CODE, PROSE, any_text

from docs_kit import ROOT, blocks
from regard.data import BpeConfig

PAGE = ROOT / "docs" / "tokenizers.md"


@pytest.fixture(scope="module")
def plain():
    """The names that the page's code defines."""
    (code,) = [block.code for block in blocks(PAGE) if block.language == "python"]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40
    names: dict[str, Any] = {}
    exec(compile(code, "docs/tokenizers.md", "exec"), names)
    return names


def same(plain, corpus, vocabulary, text):
    tokenizer = BpeConfig(vocabulary=vocabulary).build([corpus])
    merges = plain["train"](corpus, vocabulary)
    tokens = [bytes([byte]) for byte in plain["BYTES"]]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    assert tokenizer.tokens == tuple(tokens)
    assert tokenizer.merges == [(tokens[left], tokens[right]) for left, right in merges]
    for one in (corpus, text):
        assert tokenizer.encode(one).tolist() == plain["encode"](one, merges)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/design.md", "src/regard/attention/masks/mask.py"])
def test_on_a_real_text(plain, name):
    same(plain, (ROOT / name).read_text(encoding="utf-8"), 600, PROSE + CODE)


# Few different letters in many words: most pairs are as frequent as another, so that ties decide.
TIES = [
    "abab baba abba\n" * 2,
    "aaaa aaa aa a aaaaaaa\n" * 2,
    "ab ba ac ca bc cb\n" * 2,
    "\n\n   \n \t" * 4,
    "éàéà ñ 語語 😀😀 " * 3,
]


@pytest.mark.parametrize("corpus", [*TIES, PROSE, CODE], ids=range(len(TIES) + 2))
def test_where_ties_decide(plain, corpus):
    same(plain, corpus, 400, PROSE)


def known(text):
    """Whether Python knows all its characters: of newer ones the library may know that they are letters."""
    return not any(unicodedata.category(character) == "Cn" for character in text)


@given(corpus=any_text.filter(known), text=any_text.filter(known))
def test_on_any_text(plain, corpus, text):
    same(plain, corpus + corpus, 300, text)


def test_every_kind_is_on_the_page():
    from regard.config import kinds
    from regard.data import TokenizerConfig

    for kind in kinds(TokenizerConfig):
        assert f"| `{kind}` |" in PAGE.read_text(encoding="utf-8")
