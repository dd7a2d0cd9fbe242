"""certificate.json and its page: what they hold, and that they can be checked again."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.commands.prove import ProveOptions, prove
from regard.errors import UserError
from regard.prove import foreign

CLAIMS = "tokenizer,checkpoint"


def written(path: Path, **options: Any) -> dict[str, Any]:
    assert prove(ProveOptions(target="shakespeare-small", claims=CLAIMS, out=path, **options)) == 0
    return json.loads(path.read_text())


def test_a_certificate_is_checked_again(tmp_path: Path, capsys):
    path = tmp_path / "certificate.json"
    record = written(path, seed=5)
    assert record["request"]["target"] == "shakespeare-small"
    assert (record["seed"], record["effort"]) == (5, "quick")
    assert record["made_by"]["torch"] == torch.__version__
    assert all(len(record["hashes"][name]) == 64 for name in ("weights", "config", "data"))
    page = path.with_suffix(".html").read_text()
    assert "shakespeare-small" in page
    assert "decoded to themselves" in page
    capsys.readouterr()
    assert prove(ProveOptions(check=path)) == 0
    assert "the same hashes and verdicts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda record: record["claims"][0].update(verdict="fails"),
            "tokenizer: holds, but the certificate says: fails",
        ),
        (lambda record: record["claims"].pop(), "checkpoint: holds, but the certificate says: not tested"),
        (lambda record: record["hashes"].update(weights="0" * 64), "weights are not those of the certificate"),
    ],
    ids=["verdict", "claim", "hash"],
)
def test_a_certificate_that_is_wrong_ends_with_1(tmp_path: Path, capsys, change, words):
    path = tmp_path / "certificate.json"
    record = written(path)
    change(record)
    path.write_text(json.dumps(record))
    capsys.readouterr()
    assert prove(ProveOptions(check=path, json=True)) == 1
    assert words in json.loads(capsys.readouterr().out)["differences"][0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1, "request": 3}', '{"schema": 9}'])
def test_what_is_no_certificate_is_refused(tmp_path: Path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UserError, match="certificate"):
        prove(ProveOptions(check=tmp_path / "c.json"))
    with pytest.raises(UserError, match="cannot read"):
        prove(ProveOptions(check=tmp_path / "nowhere.json"))


def test_a_request_that_is_not_valid_is_refused(tmp_path: Path):
    path = tmp_path / "certificate.json"
    record = written(path)
    for name, value in (("effort", "endless"), ("seed", "1"), ("target", None)):
        path.write_text(json.dumps(record | {"request": record["request"] | {name: value}}))
        with pytest.raises(UserError, match=f"no valid {name}"):
            prove(ProveOptions(check=path))


def test_the_file_to_write_is_checked_first(tmp_path: Path):
    with pytest.raises(UserError, match="json"):
        prove(ProveOptions(target="shakespeare-small", out=tmp_path / "c.html"))
    with pytest.raises(UserError, match="no folder"):
        prove(ProveOptions(target="shakespeare-small", out=tmp_path / "none" / "c.json"))


def test_transformers_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise RuntimeError("operator torchvision::nms does not exist\nat line 3")
        return real(name, *rest)

    monkeypatch.setattr(foreign, "find_spec", lambda name: name)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(UserError, match="RuntimeError: operator torchvision::nms does not exist\\)"):
        prove(ProveOptions(target=f"hf:{tmp_path}"))
    monkeypatch.setattr(foreign, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install transformers"):
        prove(ProveOptions(target=f"hf:{tmp_path}"))
