"""Sentence vectors and `regard embed`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.convert.archive import pack
from regard.convert.hub import write_hub
from regard.data import Bytes, Source
from regard.errors import UserError
from regard.generate.sentences import TOKENS, SentenceEncoder, batches_by_length
from regard.models import EncoderConfig, GPTConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.feedforward import GELUConfig
from regard.nn.heads import NoHeadConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig

CONFIG = EncoderConfig(
    vocabulary=300, context=16, layers=2, heads=2, width=16, mask_token=4, token_types=2, embedding_norm=True, bias=True
)
CONFIG = replace(CONFIG, qk_norm=False, norm=LayerNormConfig(eps=1e-12), block=PostNormConfig(), head=NoHeadConfig())
TEXTS = ["to be", "not", "to be or not to be, that is the question", "a", "be not to"]
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "to": 1, "be": 2, "or": 3, "not": 4}, "unk_token": "?"},
}  # fmt: skip


@pytest.fixture
def encoder() -> SentenceEncoder:
    torch.manual_seed(1)
    return SentenceEncoder(CONFIG.build().eval(), Bytes())


def test_a_vector_does_not_depend_on_its_batch_and_a_long_text_is_cut(encoder: SentenceEncoder) -> None:
    found = encoder.vectors(TEXTS)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    for text, vector in zip(TEXTS, found, strict=True):
        tokens = torch.tensor(list(text.encode()[:16]))
        mean = encoder.model(tokens[None])[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm())
    with pytest.raises(UserError, match="text 2 is empty"):
        encoder.vectors(["a", ""])


def test_batches_hold_every_text_once_and_are_bounded() -> None:
    lengths = [1 + 37 * number % 500 for number in range(300)]
    batches = list(batches_by_length(lengths))
    assert sorted(row for rows in batches for row in rows) == list(range(300))
    assert all(len(rows) * max(lengths[row] for row in rows) <= TOKENS for rows in batches)
    assert list(batches_by_length([])) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with an imported encoder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    write_hub(tmp_path / "hub", CONFIG, CONFIG.build(), tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    assert main(["import", "hub", "tiny"]) == 0
    assert "regard embed runs/tiny" in capsys.readouterr().out
    return tmp_path


def test_embed_searches_and_writes_vectors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "tiny", "--file", "lines.txt", "--search", "NOT", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert found[0]["text"] == "not"
    assert found[0]["score"] == pytest.approx(1)
    assert found[0]["line"] == 2
    assert len(found) == 2
    assert main(["embed", "tiny", "--file", "lines.txt", "--out", "vectors.npy"]) == 0
    capsys.readouterr()
    assert main(["embed", "tiny", "--text", "not", "--text", "to be"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    vectors = np.load(folder / "vectors.npy")
    assert vectors.shape == (5, 16)
    np.testing.assert_allclose(vectors[[1, 0]], printed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there are no texts"),
        (["--text", "a", "--top", "0"], "--top must be at least 1"),
        (["--text", "a", "--out", "vectors.txt"], "let its name end in .npy"),
        (["--text", "a", "--out", "nowhere/vectors.npy"], "there is no folder nowhere"),
    ],
)
def test_what_embed_refuses(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "tiny", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_a_language_model_makes_no_vectors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GPTConfig(
        **{"vocabulary": 300, "width": 16, "heads": 2, "layers": 1, "bias": True, "qk_norm": False},
        norm=LayerNormConfig(), position=LearnedPositionConfig(), feedforward=GELUConfig(),
    )  # fmt: skip
    from regard.data import BpeConfig

    BpeConfig(vocabulary=260).build(["to be or not to be " * 9]).save(folder / "bpe.json")
    write_hub(folder / "published", config, config.build(), folder / "bpe.json")
    assert main(["import", "published", "gpt"]) == 0
    assert main(["embed", "gpt", "--text", "a"]) != 0
    assert "vectors are made by an encoder" in capsys.readouterr().err


def test_a_model_of_the_list_is_imported_when_it_is_first_used(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = folder / "minilm.tar"
    archive.write_bytes(pack({path.name: path.read_bytes() for path in (folder / "hub").iterdir()}))
    monkeypatch.setattr(Source, "fetch", lambda self: archive)
    for _ in range(2):
        assert main(["embed", "minilm", "--text", "to be"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == 16
    assert [path.name for path in (folder / "runs").glob("minilm*")] == ["minilm"]
