"""Tokenizers of imported encoders: WordPiece and others that are not lossless."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.tokenizers import ByteLevel, PublishedTokenizer, load_tokenizer
from regard.data.tokenizers.library import guarded
from regard.errors import UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be", "##ing", "not", ",", "caf", "##e", "a", "b", "##s"]
CLS, SEP = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
LAST = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
FIRST, SECOND = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BERT: dict[str, Any] = {
    "version": "1.0",
    "truncation": {"max_length": 6, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
    "padding": {
        **{"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    },
    "added_tokens": [{"id": number, "content": WORDS[number], **FLAGS} for number in range(5)],
    "normalizer": {
        **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
        **{"strip_accents": None, "lowercase": True},
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [CLS, FIRST, SEP],
        "pair": [CLS, FIRST, SEP, SECOND, LAST],
        "special_tokens": {name: {"id": name, "ids": [WORDS.index(name)], "tokens": [name]} for name in WORDS[2:4]},
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        **{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
        **{"max_input_chars_per_word": 100, "vocab": {word: number for number, word in enumerate(WORDS)}},
    },
}


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> PublishedTokenizer:
    found = load_tokenizer(written(tmp_path / "tokenizer.json", BERT), lossless=False)
    assert isinstance(found, PublishedTokenizer)
    return found


def test_special_tokens_are_added_and_padding_and_truncation_are_not(tokenizer: PublishedTokenizer) -> None:
    ids = tokenizer.encode("To be, not Being Cafés TO BE")
    assert [WORDS[number] for number in ids] == [
        *("[CLS]", "to", "be", ",", "not", "be", "##ing", "caf", "##e", "##s", "to", "be", "[SEP]")
    ]
    assert tokenizer.encode("be").tolist() == [2, 6, 3]
    assert tokenizer.decode(ids) == "to be, not being cafes to be"
    assert tokenizer.decode_bytes([2, 6]).decode() == "[CLS] be"
    assert tokenizer.size == len(tokenizer.widths) == len(WORDS)
    assert not tokenizer.lossless


def test_a_pair_has_two_types_and_each_token_knows_its_place(tokenizer: PublishedTokenizer) -> None:
    (pair,) = tokenizer.encode_texts([("to be", "not  being")])
    assert [WORDS[number] for number in pair.ids] == ["[CLS]", "to", "be", "[SEP]", "not", "be", "##ing", "[SEP]"]
    assert pair.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pair.spans.tolist()[4:7] == [[0, 3], [5, 7], [7, 10]]
    assert pair.words.tolist() == [-1, 0, 1, -1, 0, 1, 1, -1]
    (cut,) = tokenizer.encode_texts([("to be", "not be not be not be")], longest=8)
    assert len(cut.ids) == 8
    assert cut.ids[-1] == 3
    assert len(tokenizer.encode("to be not be not be")) == 8  # the limit was that of one call


def test_it_is_saved_and_comes_back(tokenizer: PublishedTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json", lossless=False) == tokenizer


def test_training_data_still_needs_a_lossless_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nor a byte-level BPE with an exact round trip: its model is WordPiece"):
        load_tokenizer(written(tmp_path / "tokenizer.json", BERT))


def test_a_lossless_one_without_special_tokens_stays_as_it_is(tmp_path: Path) -> None:
    from regard.data import BpeConfig

    own = BpeConfig(vocabulary=260).build(["to be or not to be " * 9])
    own.save(tmp_path / "tokenizer.json")
    assert isinstance(load_tokenizer(tmp_path / "tokenizer.json", lossless=False), ByteLevel)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = copy.deepcopy(BERT)
    change(content)
    return content


@pytest.mark.parametrize(
    "content",
    [
        changed(lambda c: c["post_processor"].update(special_tokens={})),  # the library panics when it encodes
        changed(
            lambda c: c.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
        ),  # when it reads
        changed(lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[99])),
        changed(lambda c: c["model"]["vocab"].update(far=10**9)),
        changed(lambda c: c["model"].update(vocab={})),
        changed(lambda c: c.update(model={"type": "None"})),
        changed(lambda c: c["pre_tokenizer"].update(type="Sequence")),
        {},
    ],
)
def test_a_damaged_one_is_a_sentence(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        load_tokenizer(written(tmp_path / "tokenizer.json", content), lossless=False)


def test_a_panic_becomes_an_error_and_a_signal_does_not() -> None:
    class PanicLike(BaseException):
        pass

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(ValueError, match="index out of bounds"):
        guarded(lambda: fail(PanicLike("index out of bounds")))
    with pytest.raises(KeyboardInterrupt):
        guarded(lambda: fail(KeyboardInterrupt()))


def test_half_of_a_surrogate_pair_is_refused(tokenizer: PublishedTokenizer) -> None:
    with pytest.raises(UserError, match="surrogate"):
        tokenizer.encode("\ud800")
