"""Tokens on disk: those of the whole text, with their counts, for every tokenizer, and for files that are no text."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_kit import BYTE_BASED, CODE, LEARNED, PROSE, texts_in_pieces

from regard.data import BpeConfig, BytesConfig, CharactersConfig, WordsConfig
from regard.data.texts.text_file import Summary, TextFile
from regard.data.texts.tokens import Counts, Tokens, tokenize
from regard.errors import UserError

EVERY = [CharactersConfig(), *BYTE_BASED]
every_kind = pytest.mark.parametrize("config", EVERY, ids=lambda config: config.kind)


class Pieces(TextFile):
    """A text that comes in the pieces given: str, or bytes for one that need not be text."""

    given: Any

    def __init__(self, pieces):
        super().__init__(Path("pieces"))
        object.__setattr__(self, "given", pieces)

    def pieces(self):
        assert all(isinstance(piece, str) for piece in self.given), "raw bytes were read as text"
        yield from self.given

    def raw_pieces(self):
        yield from (piece.encode() if isinstance(piece, str) else piece for piece in self.given)

    def summary(self, raw=False):
        whole = b"".join(self.raw_pieces()) if raw else "".join(self.pieces()).encode()
        return Summary(hashlib.sha256(whole).hexdigest(), len(whole) if raw else sum(map(len, self.given)))


def stored(cache):
    (folder,) = (cache / "tokens").iterdir()
    return folder


@every_kind
@given(drawn=texts_in_pieces())
def test_the_tokens_of_the_pieces_are_those_of_the_text(config, tmp_path_factory, drawn):
    text, pieces = drawn
    cache = tmp_path_factory.mktemp("cache")
    tokens, tokenizer, summary = tokenize(Pieces(pieces), config, cache)
    kept = np.load(stored(cache) / "tokens.npy") if len(tokens) else np.zeros(0)
    assert kept.tolist() == tokenizer.encode(text).tolist()
    assert tokenizer == config.build([text])
    assert summary.sha256 == hashlib.sha256(text.encode()).hexdigest()
    learned_from = 0 if isinstance(config, BytesConfig) else len(text.encode())
    assert tokens.counts == Counts(len(kept), len(text), len(text.encode()), learned_from)
    assert list((cache / "partial").iterdir()) == []


@given(
    pieces=st.lists(st.binary(max_size=20) | st.sampled_from([b"\xe2\x82", b"\xac", b"\xff", "€".encode()]), max_size=8)
)
def test_any_bytes_can_be_tokens(tmp_path_factory, pieces):
    cache = tmp_path_factory.mktemp("cache")
    tokens, tokenizer, summary = tokenize(Pieces(pieces), BytesConfig(), cache)
    whole = b"".join(pieces)
    ids = tokens.windows(np.array([0]), len(tokens))[0]
    assert tokenizer.decode_bytes(ids) == whole
    assert tokens.counts == Counts(len(whole), len(whole.decode("utf-8", "replace")), len(whole), 0)
    assert summary.length == len(whole)


def test_a_file_that_is_no_text_is_read_as_bytes(tmp_path):
    path = tmp_path / "image.bin"
    path.write_bytes(bytes(range(256)) * 3)
    tokens, tokenizer, _ = tokenize(TextFile(path), BytesConfig(), tmp_path / "cache")
    assert tokenizer.decode_bytes(tokens.windows(np.array([0]), len(tokens))) == path.read_bytes()
    with pytest.raises(UserError, match="not text"):
        tokenize(TextFile(path), BpeConfig(), tmp_path / "cache")


def test_a_vocabulary_learned_from_a_part_is_told(tmp_path, capsys):
    text = Pieces([PROSE * 2500, PROSE * 2500])
    tokens, *_ = tokenize(text, WordsConfig(megabytes=1), tmp_path)
    assert tokens.counts.learned_from == 10**6 < tokens.counts.bytes
    assert "learned from the first 1 of 2 MB (--data.tokenizer.megabytes)" in capsys.readouterr().err
    tokenize(Pieces([PROSE]), WordsConfig(megabytes=1), tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("vocabulary", [256, 300])
def test_the_width_on_disk_follows_the_vocabulary(tmp_path, vocabulary):
    tokens, tokenizer, _ = tokenize(Pieces([PROSE * 5]), BpeConfig(vocabulary), tmp_path)
    kept = np.load(stored(tmp_path) / "tokens.npy")
    assert tokenizer.size == vocabulary
    assert kept.dtype == (np.uint8 if vocabulary == 256 else np.uint16)
    assert len(kept) == len(tokens)


def test_another_text_or_another_tokenizer_is_another_entry(tmp_path):
    texts = [Pieces([PROSE]), Pieces([PROSE + "\n"]), Pieces([CODE])]
    configs = [
        CharactersConfig(),
        BytesConfig(),
        WordsConfig(),
        BpeConfig(),
        BpeConfig(300),
        BpeConfig(300, megabytes=1),
    ]
    for text in texts:
        for config in configs:
            tokenize(text, config, tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == len(texts) * len(configs)
    tokenize(Pieces([PROSE[:5], PROSE[5:]]), BpeConfig(), tmp_path)  # the same text
    assert len(list((tmp_path / "tokens").iterdir())) == len(texts) * len(configs)


@pytest.mark.parametrize("damage", [
    lambda file: file.unlink(),
    lambda file: os.truncate(file, 5),
    lambda file: file.write_text("[]"),
    lambda file: file.write_text(file.read_text().replace('"bytes"', '"bites"')),
    lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "tokens": 1})),
    lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "bytes": "7"})),
])  # fmt: skip
def test_damaged_counts_are_made_anew(tmp_path, damage):
    first, *_ = tokenize(Pieces([PROSE]), LEARNED[1], tmp_path)
    folder = stored(tmp_path)
    sound = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(sound) == {"tokens.npy", "tokenizer.json", "counts.json"}
    damage(folder / "counts.json")
    with pytest.raises((ValueError, OSError)):
        Tokens(folder / "tokens.npy")
    again, *_ = tokenize(Pieces([PROSE]), LEARNED[1], tmp_path)
    assert again.counts == first.counts
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == sound
    assert list((tmp_path / "partial").iterdir()) == []


@every_kind
def test_a_text_that_changes_meanwhile_is_noticed(tmp_path, config):
    class Growing(Pieces):
        """Its summary is that of what it was before."""

        def summary(self, raw=False):
            return Pieces([PROSE]).summary(raw)

    with pytest.raises(UserError, match="pieces changed while it was being read"):
        tokenize(Growing([PROSE, "more"]), config, tmp_path)
    assert not (tmp_path / "tokens").exists()
    assert list((tmp_path / "partial").iterdir()) == []


def test_characters_that_come_up_later_mean_that_the_text_changed(tmp_path):
    class Changing(Pieces):
        def pieces(self):
            yield from self.given
            self.given = ["é"]

        def summary(self, raw=False):
            return Summary("0" * 64, 1)

    with pytest.raises(UserError, match="changed"):
        tokenize(Changing(["abc"]), CharactersConfig(), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_memory_does_not_grow_with_the_text(tmp_path, kind):
    """One text is 50 MB longer than the other: held at once, its characters alone would show."""
    line = "".join(f"To be, or not to be: {n} is the question — whether 'tis nobler\n" for n in range(20_000))
    program = """
import sys
from pathlib import Path
from typing import Any
from regard.config import load
from regard.data.texts.text_file import TextFile
from regard.data.tokenizers import TokenizerConfig
from regard.data.texts.tokens import tokenize
config = load(TokenizerConfig, sys.argv[3] if sys.argv[3] == "bytes" else {"kind": sys.argv[3], "megabytes": 4})
tokenize(TextFile(Path(sys.argv[1])), config, Path(sys.argv[2]))
print(int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) >> 10)
"""
    peaks = []
    for megabytes in (10, 60):
        path = tmp_path / f"{megabytes}.txt"
        with open(path, "w", encoding="utf-8") as file:
            while file.tell() < megabytes * 10**6:
                file.write(line)
        command = [sys.executable, "-c", program, path, tmp_path / "cache", kind]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 30  # MiB
