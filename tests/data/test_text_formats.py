"""Compressed files, lines of JSON and tables are the text that they hold; what is damaged or missing is named."""

import gzip
import json
import sys

import pytest

from regard.data import BytesConfig, CharactersConfig, TextConfig
from regard.data.texts import formats, text_file
from regard.errors import UserError

DOCUMENTS = ["the first document, é\n", "the second\nof two lines", "", "the third"]
TEXT = "the quick brown fox\n" * 3000


def as_json(documents, field="text"):
    return "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(documents)).encode()


def compress_zst(content):
    return pytest.importorskip(formats._ZSTD).compress(content)


def write_table(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path, row_group_size=2)


COMPRESSIONS = {".gz": gzip.compress, ".zst": compress_zst}


def text_of(path, tmp_path, **options):
    return "".join(TextConfig(path=str(path), **options).texts(tmp_path / "cache")["train"].pieces())


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_texts(tmp_path, suffix, monkeypatch):
    path, plain = tmp_path / f"text.txt{suffix}", tmp_path / "plain.txt"
    path.write_bytes(COMPRESSIONS[suffix](TEXT.encode()))
    plain.write_text(TEXT)
    monkeypatch.setattr(text_file, "_PIECE", 1000)
    for tokenizer in (CharactersConfig(), BytesConfig()):
        made, other = (
            TextConfig(path=str(one), tokenizer=tokenizer).build(8, tmp_path / "cache") for one in (path, plain)
        )
        assert made.sha256 == other.sha256
    assert text_of(path, tmp_path, limit=25) == TEXT[:25]


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
def test_lines_of_json(tmp_path, suffix):
    path = tmp_path / f"pages.jsonl{suffix}"
    compress = COMPRESSIONS.get(suffix, bytes)
    path.write_bytes(compress(as_json(DOCUMENTS) + b"\n"))
    assert text_of(path, tmp_path) == "\n\n".join(filter(None, DOCUMENTS))
    path.write_bytes(compress(as_json(DOCUMENTS, "content")))
    assert text_of(path, tmp_path, field="content", separator="|") == "|".join(filter(None, DOCUMENTS))


def test_tables(tmp_path):
    path = tmp_path / "pages.parquet"
    write_table(path, {"id": [1, 2, 3, 4, 5], "text": [*DOCUMENTS, None]})
    assert text_of(path, tmp_path) == "\n\n".join(filter(None, DOCUMENTS))
    with pytest.raises(UserError, match=r"pages\.parquet has no field 'body'; it has: id, text; .*--data\.field"):
        text_of(path, tmp_path, field="body")
    with pytest.raises(UserError, match=r"'id' in row 1 of .*pages\.parquet is no text \(int\)"):
        text_of(path, tmp_path, field="id")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"pages\.parquet is damaged, or no Parquet file"):
        text_of(path, tmp_path)


def test_a_folder_of_them_with_parts(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("train-0.jsonl.gz", "train-1.jsonl.gz", "validation-0.jsonl.gz"):
        (folder / name).write_bytes(gzip.compress(as_json([name, "more"])))
    (folder / "image.npy.gz").write_bytes(gzip.compress(b"\x93NUMPY\0\0"))
    texts = TextConfig(path=str(folder)).texts(tmp_path / "cache")
    assert {key: "".join(text.pieces()) for key, text in texts.items()} == {
        "train": "train-0.jsonl.gz\n\nmore\n\ntrain-1.jsonl.gz\n\nmore",
        "validation": "validation-0.jsonl.gz\n\nmore",
    }


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-20], lambda raw: b"none of it " + raw, lambda raw: raw[:30] + raw]
)
def test_damaged_files_are_named(tmp_path, suffix, damage):
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(damage(COMPRESSIONS[suffix](bytes(range(32, 127)) * 99 + TEXT.encode())))
    with pytest.raises(UserError, match=rf"text\.txt\{suffix} is damaged or incomplete \(.+\); get it again"):
        TextConfig(path=str(path)).build(8, tmp_path / "cache")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "b", "title": "t"}', r"line 2 of .*\.jsonl has no field 'text'; it has: body, title; .*data\.field"),
        ('{"text": 3}', r"'text' in line 2 of .*pages\.jsonl is no text \(int\)"),
        ('{"text": "\\ud800"}', r"'text' in line 2 of .*pages\.jsonl has half of a surrogate pair"),
        ('["text"]', r"line 2 of .*pages\.jsonl has no field 'text'; it is no record"),
        ("plain text", r"line 2 of .*pages\.jsonl is no JSON"),
        ('{"text": "a\\u0000b"}', r"pages\.jsonl is not text: a NUL byte"),
    ],
)  # fmt: skip
def test_lines_that_hold_no_text_are_named(tmp_path, line, message):
    path = tmp_path / "pages.jsonl"
    path.write_bytes(as_json(["fine"]) + line.encode())
    with pytest.raises(UserError, match=message):
        TextConfig(path=str(path)).build(1, tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("a.zst", formats._ZSTD, "zst"), ("a.parquet", "pyarrow", "parquet")]
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, name, module, extra):
    (tmp_path / name).write_bytes(b"something")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=rf"a\.{extra} needs {module}; install it: pip install 'regard\[{extra}\]'"):
        TextConfig(path=str(tmp_path / name)).build(1, tmp_path / "cache")
