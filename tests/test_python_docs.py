"""The public names resolve lazily, and the blocks of docs/python.md are short; test_doc_blocks.py runs them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

import regard
from docs_kit import ROOT, blocks


def test_every_public_name_resolves() -> None:
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    assert set(regard.__all__) <= set(dir(regard))
    with pytest.raises(AttributeError, match="no attribute 'attendd'"):
        _ = regard.attendd  # type: ignore[attr-defined]


def test_public_names_do_not_hide_packages() -> None:
    """``regard.train`` is the package, which can be called, whether it was imported before or not."""
    source = Path(regard.__file__ or "").parent
    assert {path.stem for path in source.iterdir()} & set(regard.__all__) == {"train"}
    assert regard.train is sys.modules["regard.train"]
    assert callable(regard.train)


def test_generate_explains_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    keys = ["--model.width=32", "--train.steps=2", "--data.path=text.txt", "--train.device=cpu"]
    regard.train(regard.recipe("shakespeare-small", *keys))
    loaded = regard.load("runs/run-1", "auto")
    with pytest.raises(regard.UserError, match="it takes tokens, seed, stop, temperature, top_k"):
        loaded.generate("to be", temp=1)
    with pytest.raises(regard.UserError, match="temperature must be zero or more"):
        loaded.generate("to be", temperature=-1)
    with pytest.raises(regard.UserError, match=r"one text, not a list; regard\.TextGenerator"):
        loaded.generate(["to be", "not"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(regard.UserError, match="the prompt is empty"):
        loaded.generate("")
    with pytest.raises(regard.UserError, match="no device 'tpu' here; choose device from: auto"):
        regard.load("runs/run-1", "tpu")
    assert loaded.generate("to be", stop="\n") == loaded.generate("to be", stop=["\n"])


def test_the_methods_of_an_observer_are_documented_with_their_arguments() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    methods = inspect.getmembers(regard.Observer, inspect.isfunction)
    assert len(methods) == 8
    for name, method in methods:  # without them, a callback is written by trial and error
        assert f"| `{name}({', '.join(inspect.signature(method).parameters)})` |" in page
    assert "name=None, observers=(), runs=" in (regard.train.__doc__ or "")  # what help(regard.train) shows


def test_the_blocks_are_short_and_use_every_kind_of_name() -> None:
    codes = [block.code for block in blocks(ROOT / "docs" / "python.md")]
    assert len(codes) == 9
    assert max(len([line for line in code.splitlines() if line.strip()]) for code in codes) <= 15
