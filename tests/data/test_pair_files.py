"""Pairs from files and sources: parts that share nothing, near-duplicates dropped, errors that name the line."""

import collections
import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairs_kit import both, lines, numbers_config, same, write

from regard.config import dump, load
from regard.data import BpeConfig, DataConfig, PairsConfig, TextConfig
from regard.data.split import divide
from regard.errors import UserError

CONTEXT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def config(folder):
    return numbers_config(folder)


@given(
    groups=st.lists(st.sampled_from([f"g{number}" for number in range(30)]), min_size=1, max_size=200),
    validation=st.sampled_from([0.0, 0.05, 0.1, 0.4]),
    test=st.sampled_from([0.0, 0.05, 0.1, 0.4]),
    shuffle=st.randoms(use_true_random=False),
)
def test_no_group_is_in_two_parts(groups, validation, test, shuffle):
    parts = divide(groups, validation, test)
    assert sorted(number for part in parts for number in part) == list(range(len(groups)))
    names = [{groups[number] for number in part} for part in parts]
    assert sum(map(len, names)) == len(set(groups))
    largest = max(collections.Counter(groups).values())
    for part, share in zip(parts[1:], (validation, test), strict=True):
        assert abs(len(part) - share * len(groups)) <= largest
    assert bool(parts[2]) == (test > 0)
    order = list(range(len(groups)))
    shuffle.shuffle(order)
    again = divide([groups[number] for number in order], validation, test)
    assert [{groups[order[number]] for number in part} for part in again] == names


def test_the_same_parts_on_every_day():
    """Pinned: a change here would mix what old runs were trained on into what they are tested on."""
    parts = divide([f"chapter {number}" for number in range(12)], 0.2, 0.2)
    assert parts[1:] == ([0, 4], [5, 7, 9])


def test_sentences_without_a_group_stay_together(tmp_path):
    rows = [(one, f"{other} {number}") for one, other, _ in lines(60) for number in range(3)]
    data = PairsConfig(path=write(tmp_path / "p.tsv", rows), near=100, validation=0.2, test=0.2).build(64, tmp_path)
    parts = [set(part.sources) for part in (data.train, data.validation, data.test)]
    assert all(parts)
    assert sum(map(len, parts)) == len({one for one, _ in rows})


def test_a_third_column_that_differs_on_every_line_is_no_group(tmp_path, capsys):
    """As in every public corpus of pairs: sentence, translation, attribution."""
    plain = [(one, f"{other} {number}") for one, other, _ in lines(60) for number in range(3)]
    rows = [(*pair, f"CC-BY 2.0 #{number} (CM)") for number, pair in enumerate(plain)]
    rows[7] = (*plain[7], rows[6][2])  # nearly every line
    made, same_parts = (
        PairsConfig(path=write(tmp_path / name, some), validation=0.2, test=0.2).build(64, tmp_path)
        for name, some in (("attributed.tsv", rows), ("plain.tsv", plain))
    )
    said = capsys.readouterr().err
    assert "attributed.tsv: the third column is ignored, as an attribution: it differs on 179 of 180 lines" in said
    assert "plain.tsv: the third" not in said
    for part in ("train", "validation", "test"):
        assert vars(made)[part] == vars(same_parts)[part]


def test_a_third_column_of_groups_is_told_of(tmp_path, capsys):
    rows = [(one, other, f"chapter {number % 6}") for number, (one, other, _) in enumerate(lines(60))]
    data = PairsConfig(path=write(tmp_path / "p.tsv", rows), near=100, validation=0.2).build(64, tmp_path)
    assert "p.tsv: the third column is taken for groups (6)" in capsys.readouterr().err
    assert not set(data.train.groups) & set(data.validation.groups)


def test_what_is_nearly_known_is_dropped(tmp_path, capsys):
    rows = lines(100)
    train, validation, test = rows[:60], rows[60:80], rows[80:]
    long = max(train, key=lambda row: len(row[0]))
    validation = [*validation, (long[0] + " six", "fast bekannt", "v")]
    longest = max(validation[:-1], key=lambda row: len(row[0]))
    test = [*test, (longest[0], "bekannt", "t"), (long[0], "auch", "t")]
    paths = [write(tmp_path / f"{name}.tsv", part) for name, part in (("a", train), ("b", validation), ("c", test))]
    config = PairsConfig(path=paths[0], validation_path=paths[1], test_path=paths[2], near=90)
    data = config.build(64, tmp_path)
    said = capsys.readouterr().err
    assert "fast bekannt" not in data.validation.targets
    assert not {"bekannt", "auch"} & set(data.test.targets)
    assert longest[0] in data.validation.sources
    assert data.train.count == 60
    assert f"of 21 and 22 pairs for validation and test {data.validation.count} and {data.test.count} are kept" in said
    kept = dataclasses.replace(config, near=100).build(64, tmp_path)
    assert (kept.validation.count, kept.test.count) == (21, 22)
    assert capsys.readouterr().err == ""


def test_aligned_files(tmp_path):
    for name, part in (("train", lines(50)), ("val", lines(9, 1)), ("test_2016_flickr", lines(7, 2))):
        for column, language in enumerate(("en", "de")):
            text = "\n".join(row[column] for row in part)
            (tmp_path / f"{name}.{language}").write_text(text + "\n" * (name != "val"), encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("train", "val", "test_2016_flickr")]
    config = PairsConfig(path=paths[0], validation_path=paths[1], test_path=paths[2], languages="de-en", near=100)
    data = config.build(64, tmp_path / "cache")
    assert both(data.train) == [(other, one) for one, other, _ in lines(50)]
    assert both(data.validation) == [(other, one) for one, other, _ in lines(9, 1)]
    assert both(data.test) == [(other, one) for one, other, _ in lines(7, 2)]

    (tmp_path / "val.de").write_text("zu\nkurz\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"val\.de has 2 lines and .*val\.en has 9"):
        config.build(64, tmp_path / "cache")


def test_the_tokenizer_learns_from_training_only(tmp_path):
    rows = lines(80)
    train = write(tmp_path / "train.tsv", rows)
    odd = write(tmp_path / "odd.tsv", [("xylophone xylophone", "Xylophon Xylophon")] * 50)
    config = PairsConfig(path=train, validation=0, test=0, near=100, tokenizer=BpeConfig(vocabulary=400))
    alone = config.build(64, tmp_path)
    held_out = dataclasses.replace(config, validation_path=odd).build(64, tmp_path)
    assert held_out.tokenizer == alone.tokenizer
    assert b"xylophone" not in alone.tokenizer.tokens  # type: ignore[attr-defined]
    for word in (b" three", b" drei"):  # of both sides
        assert word in alone.tokenizer.tokens  # type: ignore[attr-defined]


def test_small_letters(tmp_path):
    path = write(tmp_path / "p.tsv", [("The Door", "Die Tür"), ("The House", "Das HAUS"), ("A", "Ä")])
    data = PairsConfig(path=path, validation=0, test=0, lower=True).build(16, tmp_path)
    assert data.train.targets == ["die tür", "das haus", "ä"]
    assert data.lower
    assert data.encode_source("THE Door") == data.encode_source("the door")
    assert list(data.validation_batches(100)) == list(data.test_batches(100)) == []


def test_the_hash_tells_pairs_apart(tmp_path):
    rows = lines(30)
    one = PairsConfig(path=write(tmp_path / "a.tsv", rows)).build(64, tmp_path)
    copy = PairsConfig(path=write(tmp_path / "b.tsv", rows)).build(64, tmp_path)
    other = PairsConfig(path=write(tmp_path / "c.tsv", [*rows[:-1], ("x", "y", "z")])).build(64, tmp_path)
    assert one.sha256 == copy.sha256 != other.sha256


def test_what_the_cache_keeps_is_mended(config, tmp_path):
    first = config.build(CONTEXT, tmp_path)
    (folder,) = (tmp_path / "pairs").iterdir()
    asked: dict[str, Any] = {"seed": 3, "size": 256}
    for name in ("tokens.npy", "counts.npy", "tokenizer.json"):
        whole = (folder / name).read_bytes()
        for damage in (whole[:-9], b""):
            (folder / name).write_bytes(damage)
            assert same(config.build(CONTEXT, tmp_path).batch(2, **asked), first.batch(2, **asked))
            assert (folder / name).read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no pair"),
        ("one\teins\ntwo zwei\n", "line 2 of .* has 1 columns"),
        ("one\teins\tg\tmore\n", "line 1 of .* has 4 columns"),
        (b"one\teins\ntwo\tzw\xff\n", "line 2 of .* is not UTF-8"),
        ("one\teins\tg\ntwo\tzwei\tg\n", "are of 1 group"),
    ],
)
def test_files_that_are_no_pairs(tmp_path, content, message):
    path = tmp_path / "p.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        PairsConfig(path=str(path)).build(64, tmp_path)


def test_a_line_that_lacks_a_side_is_left_out_and_that_is_said(tmp_path, capsys):
    path = write(tmp_path / "p.tsv", [("one", "eins"), ("two", ""), ("", ""), ("three", "drei")])
    data = PairsConfig(path=path, validation=0, test=0).build(64, tmp_path)
    assert data.train.sources == ["one", "three"]
    assert "2 of 4 lines lack one side" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"languages": "english"}, "should name two, such as en-fr"),
        ({"languages": "en-en"}, "should name two"),
        ({"languages": "en-nl"}, "'homeassistant' has no 'nl'; it has en, de, fr, it"),
        ({"source": "plays"}, "is a text and not pairs .* with pairs are: bible, homeassistant"),
        ({"source": "homeasistant"}, "did you mean 'homeassistant'"),
        ({"validation": 0.6, "test": 0.4}, "leave nothing to train on"),
        ({"test": 1.0}, "must be at least 0 and less than 1"),
        ({"batch": 0}, "at least 1 token"),
        ({"near": 101.0}, "at most 100"),
    ],
)
def test_impossible_values(given, message):
    with pytest.raises(UserError, match=message):
        load(DataConfig, {"kind": "pairs", **given})
    with pytest.raises(ValueError, match=message):
        PairsConfig(**given).build(64)


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"neither a file of pairs .*train nor the two files train\.en and train\.fr"):
        PairsConfig(path=str(tmp_path / "train")).build(64, tmp_path)


def test_as_a_config(config):
    again = load(DataConfig, json.loads(json.dumps(dump(config))))
    assert again == config
    assert isinstance(load(DataConfig, {"kind": "pairs"}), PairsConfig)
    assert isinstance(load(DataConfig, {"kind": "text"}), TextConfig)


def test_reading_a_config_needs_no_torch():
    code = "import sys, regard.data as d; d.PairsConfig().check(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "languages", "counts"),
    [
        ("homeassistant", "en-fr", (14909, 838, 790)),
        ("homeassistant", "fr-en", None),
        ("homeassistant", "en-de", (15547, 832, 834)),
        ("homeassistant", "en-it", (7079, 376, 372)),
        ("bible", "en-de", (27411, 1515, 1443)),
    ],
)
def test_the_sources(source, languages, counts, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "fetched once"
    data = PairsConfig(source=source, languages=languages, batch=8192).build(1024, cache)
    parts = (data.train, data.validation, data.test)
    assert counts is None or tuple(part.count for part in parts) == counts
    for part in parts:
        for text in part.sources + part.targets:
            assert text == " ".join(text.split()) != ""
            assert not set(text) & set("{}[]<>`*_|\\«»" if source == "bible" else "{}[]<>`*_|\\")
        assert all(one != other for one, other in both(part))
    if source == "homeassistant" and languages == "en-fr":
        assert all(len(text.split()) >= 3 for part in parts for text in part.sources)
    if source == "bible":
        assert {"Matthew 2", "Matthew 26", "Mark 8"}.isdisjoint(group for part in parts for group in part.groups)
        assert len({group for part in parts for group in part.groups}) == 1178
