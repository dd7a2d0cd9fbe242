"""`tokenizer.json`: ours read strictly, another's only where every text comes back from it."""

import copy
import json

import pytest
import tokenizers
from hypothesis import given
from tokenizer_kit import BYTE_BASED, CORPUS, PROSE, any_text, texts_in_pieces
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data import CharactersConfig, load_tokenizer
from regard.data.tokenizers import regroup
from regard.errors import UserError


def foreign(pre_tokenizer=None, special=("<|end|>",)):
    """A byte-level BPE made as the library's manual says, in GPT-2's format."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


BEHAVIOURS = ["isolated", "merged_with_previous", "merged_with_next", "contiguous"]


@pytest.fixture(scope="module", params=["GPT-2's", "no special tokens", *BEHAVIOURS, "digits"])
def library(request):
    if request.param in BEHAVIOURS:
        steps = [pre_tokenizers.Split(Regex(r"\s+|[.,!]"), request.param)]
    elif request.param == "digits":
        steps = [pre_tokenizers.Digits(individual_digits=True)]
    else:
        return foreign(special=("<|end|>",) if request.param == "GPT-2's" else ())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return foreign(pre_tokenizers.Sequence([*steps, last]))


@pytest.fixture(scope="module")
def loaded(library, tmp_path_factory):
    path = tmp_path_factory.mktemp("foreign") / "tokenizer.json"
    library.save(str(path))
    return load_tokenizer(path)


@given(text=any_text)
def test_a_byte_level_bpe_of_others_is_taken_over(library, loaded, text):
    ids = loaded.encode(text).tolist()
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert loaded.decode(ids) == text
    assert loaded.size == library.get_vocab_size()


@given(drawn=texts_in_pieces())
def test_where_another_splits_is_not_known_so_nothing_is_cut(loaded, drawn):
    text, pieces = drawn
    parts = list(regroup(pieces, loaded.cut))
    assert parts == ([text] if text else [])


def test_a_special_token_is_its_text(loaded, library):
    if library.token_to_id("<|end|>") is not None:
        assert loaded.encode("to<|end|>be").tolist().count(library.token_to_id("<|end|>")) == 1
    assert loaded.decode(loaded.encode("to<|end|>be")) == "to<|end|>be"


def _set(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(content):
        for key in keys:
            content = content[key]
        content[last] = value

    return change


def _drop(content):
    del content["model"]["vocab"]["a"]
    content["model"]["merges"] = []


SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
LAST = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CHANGES = {
    "normalizer": _set("normalizer", {"type": "NFC"}),
    "truncation": _set("truncation", {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}),
    "a space before": _set("pre_tokenizer", "add_prefix_space", True),
    "removes what it splits at": _set("pre_tokenizer", {"type": "Sequence", "pretokenizers": [SPLIT, LAST]}),
    "pre-tokenizer Whitespace": _set("pre_tokenizer", {"type": "Whitespace"}),
    "pre-tokenizer None": _set("pre_tokenizer", None),
    "pre-tokenizer Split": _set("pre_tokenizer", SPLIT),
    "decoder is not": _set("decoder", None),
    "dropout": _set("model", "dropout", 0.5),
    "end_of_word_suffix": _set("model", "end_of_word_suffix", "</w>"),
    "falls back to bytes": _set("model", "byte_fallback", True),
    "model is Unigram": _set("model", "type", "Unigram"),
    "no model": _set("model", None),
    "swallows": _set("added_tokens", 0, "lstrip", True),
    "no number or no content": _set("added_tokens", 0, "content", ""),
    "not text": _set("added_tokens", 0, "content", 5),
    "no list": _set("added_tokens", None),
    "same number": _set("model", "vocab", "a", 70),
    "do not have the numbers": _set("model", "vocab", "a", 7000),
    "not a table": _set("model", "vocab", "a", "7"),
    "byte-level alphabet": _set("model", "vocab", "語", 301),
    "numbers 0 to": _drop,
    "library refuses": _set("model", "merges", [["語", "語"]]),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_what_does_not_bring_every_text_back_is_refused_with_the_reason(tmp_path, reason):
    content = json.loads(foreign().to_str())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert load_tokenizer(path).decode(load_tokenizer(path).encode(PROSE)) == PROSE
    CHANGES[reason](content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"tokenizer\.json.*{reason}"):
        load_tokenizer(path)


def test_a_byte_without_a_token_is_named(tmp_path):
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.decode(loaded.encode("abba")) == "abba"
    with pytest.raises(UserError, match="no token for the byte 0x63"):
        loaded.encode("abc")


def test_a_normalizer_would_change_text(tmp_path):
    """What the refusals are for: this one does not bring a text back."""
    made = foreign()
    made.normalizer = normalizers.Lowercase()
    assert made.decode(made.encode("To").ids) == "to"


@pytest.mark.parametrize("config", [CharactersConfig(), *BYTE_BASED], ids=lambda config: config.kind)
def test_any_one_change_to_a_file_of_ours_is_refused_or_means_the_same(config, tmp_path):
    """Every value of the file in turn becomes another: nothing is read as something it does not say."""
    path = tmp_path / "tokenizer.json"
    tokenizer = config.build(CORPUS)
    tokenizer.save(path)
    sound = json.loads(path.read_text(encoding="utf-8"))
    for place in _places(sound):
        content = copy.deepcopy(sound)
        _set(*place, "other")(content)
        path.write_text(json.dumps(content))
        try:
            changed = load_tokenizer(path)
        except UserError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert config.kind not in ("characters", "python"), place  # these are read by nobody else
            text = "".join(CORPUS)
            assert changed.decode(changed.encode(text)) == text, place


def _places(content, before=()):
    """The path to every value but those of the long vocabulary and of the merges, of which one stands for all."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*before, key)
        if isinstance(value, dict | list) and before[-1:] != ("merges",):
            inner = list(_places(value, (*before, key)))
            yield from inner[:1] if key in ("vocab", "merges") else inner


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", "[" * 100_000, '{"model": {"type": "BPE", "vocab": {}}}', "\ud800"]
)
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer at .*absent\.json"):
        load_tokenizer(tmp_path / "absent.json")
