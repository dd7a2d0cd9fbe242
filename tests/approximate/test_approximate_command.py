"""`regard approximate` and `regard mask`: as processes where they succeed, by `main` where they refuse."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard.cli import main
from warm_process import Regard


class Tags(HTMLParser):
    """Whether every tag that needs it is closed, and what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_measured_and_otherwise_untouched(room: Path, regard: Regard) -> None:
    before = files(room / "runs" / "tiny")
    budgets = ["--budgets", "window=2,16", "topk=16", "--windows", "6"]
    done = regard("approximate", "--kinds", "window,linformer,topk", *budgets)
    assert done.returncode == 0, done.stderr
    assert "window costs about 0.01 nats or less with size = 16: " in done.stdout
    assert "linformer cannot replace the attention of this model: linformer cannot be causal" in done.stdout
    after = files(room / "runs" / "tiny")
    made = {"approximate.html", "approximate.svg", "approximate.json"}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == made
    tags = Tags()
    tags.feed(after["approximate.html"].decode())
    assert (tags.open, tags.fetched) == ([], [])
    assert ET.fromstring(after["approximate.svg"].decode()).tag.endswith("svg")
    told = json.loads(after["approximate.json"])
    assert told["tokens"] == 6 * 16
    exact = next(one for one in told["outcomes"] if one["settings"] == {"size": 16})
    assert exact["loss"] == pytest.approx(told["loss"], abs=1e-6)
    assert max(head["error"] for head in exact["heads"]) < 1e-5
    assert exact["tokens_per_second"] > 0


@pytest.fixture
def inside(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process, in the room."""
    monkeypatch.chdir(room)
    monkeypatch.setenv("REGARD_CACHE", str(room / "cache"))


@pytest.mark.usefixtures("inside")
def test_another_text_another_folder_and_json(room: Path, capsys) -> None:
    (room / "other.txt").write_text("the fox and the dog\n" * 30)
    options = [
        "--kinds",
        "window",
        "--budgets",
        "window=4",
        "--text",
        "other.txt",
        "--out",
        "made/here",
        "--each-layer",
    ]
    assert main(["approximate", "tiny", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == "made/here/approximate.html"
    assert "other.txt" in told["setting"]
    assert len(told["outcomes"][0]["loss_by_block"]) == 2
    assert (room / "made" / "here" / "approximate.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kinds", "windoww"], "did you mean window?"),
        (["--windows", "0"], "--windows must be at least 1"),
        (["--text", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--text", "short.txt"], "fewer than two windows"),
        (["--budgets", "window"], "KIND=8,16,32"),
        (["nothing"], "there is no run"),
    ],
)
@pytest.mark.usefixtures("inside")
def test_a_mistake_is_one_sentence(room: Path, capsys, options: list[str], words: str) -> None:
    (room / "short.txt").write_text("the fox")
    assert main(["approximate", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (said,) = (line for line in shown.err.splitlines() if not line.startswith("the newest run: "))
    assert words in said


def test_a_mask_is_drawn(room: Path, regard: Regard, capsys) -> None:
    done = regard("mask", "causal & window(8) | prefix(2)", "--svg", "m.svg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "causal & window(8) | prefix(2)"
    assert "276 of 1,024 pairs are allowed" in done.stdout
    assert ET.fromstring((room / "m.svg").read_text()).tag.endswith("svg")
    assert main(["mask", "causal", "--length", "10", "--block", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["allowed"], told["tiles"]) == (55, {"full": 1, "partial": 2, "skipped": 1})
    assert main(["mask"]) == 0
    assert "window(size, ahead=0)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["causl"], "did you mean causal?"),
        (["causal", "--length", "0"], "not 0"),
        (["causal", "--svg", "m.png"], "must end in .svg"),
        (["same([0, 1])"], "choose a shorter length"),
    ],
)
def test_a_mask_that_cannot_be_is_one_sentence(capsys, options: list[str], words: str) -> None:
    assert main(["mask", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
