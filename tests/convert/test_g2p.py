"""The pretrained speller of `g2p_en` in our model says what the package's own NumPy code says."""

from __future__ import annotations

import ast
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from regard.convert.g2p import GRAPHEMES, NAMES, PHONEMES, read_g2p
from regard.errors import UserError

PACKAGE = "g2p_en==2.1.0"


def arrays(width: int = 6, embedding: int = 4) -> dict[str, np.ndarray]:
    """A file like the package's, smaller and with random numbers."""
    noise = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"fc_w": (len(PHONEMES), width), "fc_b": (len(PHONEMES),)}
    for side, vocabulary in (("enc", len(GRAPHEMES)), ("dec", len(PHONEMES))):
        shapes[f"{side}_emb"] = (vocabulary, embedding)
        shapes[f"{side}_w_ih"], shapes[f"{side}_w_hh"] = (3 * width, embedding), (3 * width, width)
        shapes[f"{side}_b_ih"] = shapes[f"{side}_b_hh"] = (3 * width,)
    return {name: noise.normal(size=shapes[name]).astype(np.float32) for name in NAMES}


def saved(path: Path, **changes: Any) -> Path:
    np.savez(path, **{name: value for name, value in {**arrays(), **changes}.items() if value is not None})
    return path


def test_sizes_come_from_the_file(tmp_path: Path) -> None:
    pronouncer = read_g2p(saved(tmp_path / "a.npz"))
    config = pronouncer.model.config
    assert (config.width, config.embedding, config.vocabulary, config.source_vocabulary) == (6, 4, 74, 29)
    own = pronouncer.model.state_dict()
    assert set(own) == set(NAMES.values())
    for name, place in NAMES.items():
        assert torch.equal(own[place], torch.from_numpy(arrays()[name]))
    assert not pronouncer.model.training


def test_words_in_company_are_said_as_alone(tmp_path: Path) -> None:
    pronouncer = read_g2p(saved(tmp_path / "a.npz"))
    words = ["a", "attention", "Ünique", "", "zz"]
    assert pronouncer.pronounce(words) == [pronouncer.pronounce([word])[0] for word in words]
    assert pronouncer.pronounce([]) == []
    source, lengths = pronouncer.encode(["ab", "Ü"])
    assert source.tolist() == [[3, 4, 2], [1, 2, 0]]
    assert lengths.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fc_w": None}, "is no checkpoint20.npz of g2p_en: .*fc_w"),
        ({"fc_b": np.zeros(3, np.float32)}, r"fc_b has the shape \(3,\), but must have \(74,\); take checkpoint20.npz"),
        ({"dec_emb": np.zeros((74, 5), np.float32)}, r"dec_emb has the shape \(74, 5\), but must have \(74, 4\)"),
        ({"enc_emb": np.zeros(3, np.float32)}, "enc_emb must be a matrix, but has 1 axes"),
        ({"fc_b": np.array(["x"] * 74)}, "is no archive of plain number arrays"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_g2p(saved(tmp_path / "a.npz", **changes))


class Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    with pytest.raises(UserError, match="is no archive of plain number arrays"):
        read_g2p(saved(tmp_path / "a.npz", fc_b=np.array([Trap(sprung)], dtype=object)))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(UserError, match="is no archive of plain number arrays"):
        read_g2p(tmp_path / "b.npz")
    assert not sprung.exists()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_g2p(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(saved(tmp_path / "a.npz").read_bytes()[:900])
    for name in ("one.npy", "empty.npz", "cut.npz"):
        with pytest.raises(UserError, match=f"{name} is no archive of plain number arrays"):
            read_g2p(tmp_path / name)


# The real one


def package(folder: Path) -> Path:
    """The package's files, taken out of its wheel: nothing is installed or run."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-q", "-d", str(folder)]
    fetched = subprocess.run([*command, PACKAGE], capture_output=True, text=True)
    wheels = list(folder.glob("g2p_en-*.whl"))
    if fetched.returncode or not wheels:
        pytest.skip(f"{PACKAGE} cannot be fetched: {fetched.stderr.strip()[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder / "g2p_en"


def oracle(folder: Path) -> Any:
    """The package's own class. Its module fetches dictionaries when imported, so the class is taken out of it."""
    tree = ast.parse((folder / "g2p.py").read_text(encoding="utf-8"))
    tree.body = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    names: dict[str, Any] = {"np": np, "os": os, "dirname": str(folder)}
    names |= {"cmudict": SimpleNamespace(dict=dict), "construct_homograph_dictionary": dict}  # not used to predict
    exec(compile(tree, str(folder / "g2p.py"), "exec"), names)
    return names["G2p"]()


def words(folder: Path, count: int) -> list[str]:
    """The package's own list of words, then made-up ones of all lengths, some with letters it does not know."""
    listed = [line.split("|")[0].lower() for line in (folder / "homographs.en").read_text("utf-8").splitlines()]
    found = [word for word in dict.fromkeys(listed) if word and not word.startswith("#")]
    draw = random.Random(0)
    while len(found) < count:
        letters = "abcdefghijklmnopqrstuvwxyz" + "'é" * (len(found) % 7 == 0)
        found.append("".join(draw.choice(letters) for _ in range(draw.randint(1, 24))))
    return found[:count]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_five_hundred_words_are_said_as_by_the_package(tmp_path: Path) -> None:
    folder = package(tmp_path)
    theirs = oracle(folder)
    pronouncer = read_g2p(folder / "checkpoint20.npz")
    assert list(pronouncer.graphemes) == theirs.graphemes
    assert list(pronouncer.phonemes) == theirs.phonemes
    asked = words(folder, 500)
    assert len(set(asked)) > 450
    said = pronouncer.pronounce(asked)
    assert said == [theirs.predict(word) for word in asked]
    assert len({tuple(one) for one in said}) > 400
    assert pronouncer.pronounce(["attention"]) == [["AH0", "T", "EH1", "N", "SH", "AH0", "N"]]
