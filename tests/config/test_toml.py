"""Configs as files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import config_tree as tree
import pytest

from regard.config import load, read_toml, to_toml
from regard.errors import UserError


def test_simple_keys_come_before_tables_and_choices_are_tables() -> None:
    config = tree.experiment(model=tree.GPTConfig(mask=tree.AndConfig((tree.CausalConfig(), tree.WindowConfig(8)))))
    assert to_toml(config) == (
        'seed = 1\npath = "data.txt"\n"λ" = 0.5\n'
        '\n[model]\nkind = "gpt"\nwidth = 128\nheads = 4\ndropout = 0.0\nbias = false\ntied = true\n'
        'labels = ["a", "none"]\n'
        '\n[model.position]\nkind = "rotary"\nbase = 10000.0\n'
        '\n[model.mask]\nkind = "and"\nparts = [{kind = "causal"}, {kind = "window", width = 8}]\n'
        '\n[model.rotary]\nkind = "rotary"\nbase = 5.0\n'
        '\n[train]\nsteps = 10\nrate = 1e-08\nbetas = [0.9, 0.95]\nprecision = "fp32"\nlevel = 1\n'
        'compile = false\ntags = []\ngrid = [[1], [2, 3]]\npair = [true, "x"]\nnote = ""\n'
    )


def test_text_of_any_kind_survives(tmp_path: Path) -> None:
    every = "".join(map(chr, [*range(0x300), 0x2028, 0xFEFF, 0x1F600]))
    config = tree.experiment(train=tree.TrainConfig(1, note=every, tags=('"""', "'''", "\\", "\r\n")))
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load(tree.Experiment, read_toml(path), path) == config


def test_tables_may_be_written_in_any_of_tomls_ways(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    expected = tree.experiment(model=tree.GPTConfig(position=tree.RotaryConfig(5e5)))
    for position in (
        '[model]\nkind = "gpt"\nposition = {kind = "rotary", base = 5e5}',
        '[model]\nkind = "gpt"\n[model.position]\nkind = "rotary"\nbase = 500_000',
        '[model]\nkind = "gpt"\nposition.kind = "rotary"\nposition.base = 5e5',
    ):
        path.write_text(f"\ufeff[train]\r\nsteps = 10\r\n{position}\n", encoding="utf-8")
        assert load(tree.Experiment, read_toml(path), path) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[train]\nsteps = 10\n\nseed = \n", "line 4, column 8 is not valid TOML: invalid value in `seed =`"),
        (b"seed = 1\nseed = 2\n", "line 2, column 9 is not valid TOML: cannot overwrite a value in `seed = 2`"),
        (b"seed = [1", "not valid TOML: Unclosed array (at end of document)"),
        (b"# \xff", "byte 2 is not UTF-8 text; save the file as UTF-8"),
        (b"seed = " + b"[" * 100_000, "the tables or lists are nested too deeply"),
        (b"sed = 1", "unknown key `sed`; did you mean `seed`?"),
    ],
)
def test_a_bad_file_is_named_with_the_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load(tree.Experiment, read_toml(path), path)
    assert str(caught.value).startswith(f"{path}: {says}")


def test_a_file_that_cannot_be_opened_is_the_persons_to_mend(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_toml(path)


def test_importing_config_is_cheap_and_brings_neither_torch_nor_tomllib() -> None:
    code = "import regard.config, sys; print(sorted({'torch', 'numpy', 'tomllib'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert run.stdout == "[]\n"
