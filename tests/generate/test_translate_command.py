"""`regard translate` as a person runs it: real processes on models that were really trained."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from regard.cli import main
from warm_process import Regard
from warm_process import regard as call

THINGS = {
    "light": "la lumière",
    "door": "la porte",
    "window": "la fenêtre",
    "garden": "le jardin",
    "room": "la chambre",
    "lamp": "la lampe",
    "heater": "le chauffage",
}
STATES = {
    "is open": "est ouvert",
    "does not answer": "ne répond pas",
    "was moved": "a changé de place",
    "needs a battery": "demande une pile",
}
TIMES = {"today": "aujourd'hui", "now": "maintenant", "this morning": "ce matin", "": ""}
CONTEXT = 24


def toy_pairs() -> list[tuple[str, str]]:
    """A language of 112 sentences in which the time moves to the front."""
    return [
        (f"the {thing} {state} {time}".strip(), f"{when} {what} {is_so}".strip())
        for thing, what in THINGS.items()
        for state, is_so in STATES.items()
        for time, when in TIMES.items()
    ]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `words` (a Transformer) and `letters` (one state for all, of characters)."""
    folder = tmp_path_factory.mktemp("translating")
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    given = "--data.path pairs.tsv --data.near 100 --data.validation 0.1 --data.test 0.15 --data.batch 512"
    sizes = f"--model.context {CONTEXT} --model.width 32 --model.layers 2 --model.heads 2 --model.dropout 0"
    words = f"--data.tokenizer.vocabulary 400 {sizes} --train.steps 180 --train.save_every 90"
    letters = "--data.tokenizer characters --model.context 60 --model.width 16 --train.steps 3"
    for name, recipe, rest in (("letters", "translate-fixed", letters), ("words", "translate-transformer", words)):
        done = call(folder, "train", recipe, "--name", name, *given.split(), *rest.split())
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def regard(house: Path) -> Regard:
    return lambda *words, **options: call(house, *words, **{"input": "", **options})


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def quick(house, monkeypatch, capsys) -> Callable[..., Done]:
    """`quick(*words, input=...)`: the same without the start of another process."""
    monkeypatch.chdir(house)
    monkeypatch.setenv("REGARD_CACHE", str(house / "cache"))

    def quick(*words: str, input: str = "") -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO(input))
        return Done(main(list(words)), *capsys.readouterr())

    return quick


@pytest.fixture
def inside(quick) -> Callable[..., dict[str, Any]]:
    """`inside(*options)`: what `regard translate words --json` prints."""

    def inside(*options: str) -> dict[str, Any]:
        done = quick("translate", "words", "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return inside


def test_texts_come_from_the_command_line_a_file_and_standard_input(regard, quick, house):
    lines = [source for source, _ in toy_pairs()[::7]]
    (house / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wanted = quick("translate", "words", *lines).stdout
    assert len(wanted.splitlines()) == len(lines)
    assert quick("translate", "words", "--file", "in.txt", "--batch", "2").stdout == wanted
    assert regard("translate", "words", input="\n".join(lines)).stdout == wanted
    assert quick("translate", "words", "-", input="\r\n".join(lines)).stdout == wanted
    done = quick("translate", "words", "--file", "in.txt", "--out", "out.txt", "--beam", "5")
    assert done.stdout == ""
    assert (house / "out.txt").read_text(encoding="utf-8") == wanted


def test_it_has_learned_to_translate(inside):
    made = inside("the door was moved now", "the room is open")["translations"]
    assert [one["text"] for one in made] == ["maintenant la porte a changé de place", "la chambre est ouvert"]
    assert all(one["texts"][0]["ended"] and one["unknown"] == [] for one in made)


@pytest.mark.parametrize(
    "order",
    [
        ["words", "the door is open", "the room is open"],
        ["the door is open", "the room is open", "words"],
        ["runs/words", "--beam", "5", "the door is open", "the room is open"],
        ["--beam", "5", "the door is open", "--seed", "1", "the room is open"],
    ],
)
def test_the_run_may_stand_anywhere_or_nowhere(quick, order):
    done = quick("translate", *order)
    assert done.stdout == "la porte est ouvert\nla chambre est ouvert\n", done.stderr
    assert ("translated by runs/words" in done.stderr) == (order[0] == "--beam")


def test_without_a_text_held_out_sentences_are_shown(quick):
    done = quick("translate", "words")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split("\n\n")[:-1]
    assert 1 <= len(shown) <= 5
    for one in shown:
        source, reference, translation = one.splitlines()
        assert (source[13:], reference[13:]) in toy_pairs()
        assert translation.startswith("translation  ")


def test_odd_lines_keep_their_place_and_are_reported(quick):
    long = "the door " * 30
    lines = ["the door is open", "", "   ", long, "the qzxwvj is open", "the room is open"]
    done = quick("translate", "words", input="\n".join(lines) + "\n")
    made = done.stdout.splitlines()
    assert len(made) == 6
    assert (made[0], made[1], made[2], made[5]) == ("la porte est ouvert", "", "", "la chambre est ouvert")
    assert "lines 2, 3 are empty" in done.stderr
    assert f"line 4 is longer than the {CONTEXT} tokens" in done.stderr
    assert "unknown to the vocabulary: 'qzxwvj' (line 5)" in done.stderr
    strange = quick("translate", "letters", "the door is öpen", "--max-length", "9")
    assert strange.returncode == 0, strange.stderr
    assert "unknown to the vocabulary: 'ö' (line 1)" in strange.stderr


def test_several_translations_of_a_line(quick, inside):
    done = quick("translate", "words", "the door is open", "", "the room is open", "--nbest", "3")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        *(["1", str(i)] for i in (1, 2, 3)),
        ["2", "1"],
        *(["3", str(i)] for i in (1, 2, 3)),
    ]
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    (one,) = inside("the door is open", "--nbest", "3")["translations"]
    assert [row[3] for row in rows[:3]] == [text["text"] for text in one["texts"]]
    assert [text["score"] for text in one["texts"]] == pytest.approx(scores, abs=1e-4)
    plain = inside("the door is open", "--nbest", "3", "--length-penalty", "0")["translations"][0]["texts"]
    assert all(text["score"] == pytest.approx(text["logprob"]) for text in plain)


def test_draws_follow_the_seed_and_not_the_batch(inside):
    drawn = ["--sample", "--temperature", "1.2", "--nbest", "4"]
    lines = ["the door is open", "the room was moved now", "the light is open today"]

    def texts(*given: str) -> list[list[str]]:
        return [[text["text"] for text in one["texts"]] for one in inside(*given)["translations"]]

    together = texts(*lines, *drawn)
    assert any(len(some) > 1 for some in together)
    assert together == texts(*lines, *drawn, "--batch", "1")
    assert together != texts(*lines, *drawn, "--seed", "2")
    assert texts(lines[1], *drawn) == together[1:2]
    assert texts(*lines, "--sample", "--temperature", "0") == texts(*lines, "--beam", "1")


def test_figures_against_references(quick, house, inside):
    sources, targets = zip(*toy_pairs()[:6], strict=True)
    (house / "right.txt").write_text("\n".join(targets), encoding="utf-8")
    done = quick("translate", "words", "--reference", "right.txt", input="\n".join(sources))
    assert "tok:13a" in done.stdout
    bleu, chrf = done.stdout.splitlines()[-2:]
    assert bleu.startswith("BLEU")
    assert chrf.startswith("chrF")
    found = inside(*sources, "--reference", "right.txt")
    assert [one["reference"] for one in found["translations"]] == list(targets)
    assert f"{found['scores'][0]['value']:.2f}" in bleu


def test_the_test_part_is_measured_beside_the_baseline(quick, inside):
    done = quick("translate", "words", "--test", "--out", "tested.txt")
    assert done.returncode == 0, done.stderr
    found = inside("--test")
    assert found["scores"][0]["value"] > 50
    assert 0 < found["baseline"][0]["value"] < 100
    assert sum(one["size"] for one in found["by_length"]) == len(found["translations"])
    assert f"BLEU  {found['scores'][0]['value']:6.2f}" in done.stdout
    assert "by TF-IDF): BLEU" in done.stdout
    assert "BLEU by words of the source" in done.stdout
    assert done.stdout.count("sentence") >= 2


def test_alignments_are_drawn(quick, house):
    done = quick("translate", "words", "the door is open now", "--show")
    lines = done.stdout.splitlines()
    assert lines[0] == "maintenant la porte est ouvert"
    assert any(line.split() == ["the", "door", "is", "open", "now", "<end>"] for line in lines)
    assert "mean of 4 heads" in lines[-1]
    assert "\033" not in done.stdout
    for name in ("a.svg", "a.png", "a.html"):
        assert quick("translate", "words", "the door is open", "--show", name).returncode == 0
        assert (house / name).stat().st_size > 1000


def test_a_step_picks_the_checkpoint(inside):
    assert inside("the door is open", "--step", "90")["step"] == 90
    assert inside("the door is open")["step"] == 180


WRONG = {
    "no beam": (["--beam", "0"], "--beam must be at least 1"),
    "too many": (["--nbest", "9"], "--nbest 9 needs as many beams; give --beam 9"),
    "too long": (["a", "--max-length", "900"], "a translation has 1 to 24 tokens in this model, not 900"),
    "cold": (["a", "--sample", "--temperature", "-1"], "--temperature must be zero or more"),
    "no file": (["--file", "nowhere.txt"], "nowhere.txt cannot be read"),
    "no text": (["--file", "bytes.txt"], "bytes.txt cannot be read: it is not UTF-8"),
    "empty file": (["--file", "empty.txt"], "nothing to translate in empty.txt"),
    "references": (["a", "b", "--reference", "one.txt"], "one.txt has 1 lines for 2 texts"),
    "test and text": (["a", "--test"], "--test brings its own texts"),
    "standard input twice": (["-", "--file", "-"], "give - once"),
    "no folder": (["a", "--out", "nowhere/out.txt"], "no folder nowhere"),
    "no such picture": (["a", "--show", "nowhere/a.svg"], "no folder nowhere"),
    "no such step": (["a", "--step", "7"], "no checkpoint of step 7"),
    "no such device": (["a", "--device", "toaster"], "no device 'toaster'"),
    "mistyped": (["wordz"], "there is no run"),
    "a text run": (["text", "a"], "does not translate; `regard generate` generates text with it; name a run"),
    "other pairs": (["changed"], "is not what this run was trained on"),
}


@pytest.fixture(scope="module")
def wrongs(house):
    """Everything a mistake can be about."""
    (house / "bytes.txt").write_bytes(b"\xff\xfe\x80")
    (house / "empty.txt").write_text("\n\n")
    (house / "one.txt").write_text("un\n")
    text = house / "runs" / "text"
    shutil.copytree(house / "runs" / "words", text)
    config = (text / "config.toml").read_text()
    (text / "config.toml").write_text(config.replace('kind = "pairs"', 'kind = "text"'))
    changed = house / "runs" / "changed"
    shutil.copytree(house / "runs" / "words", changed)
    (house / "others.tsv").write_text("".join(f"{a}!\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    written = (changed / "config.toml").read_text()
    (changed / "config.toml").write_text(written.replace('"pairs.tsv"', '"others.tsv"'))
    for folder in (text, changed):  # as of a version without manifests, which would name the change first
        (folder / "MANIFEST.json").unlink()
    yield
    for folder in (text, changed):
        shutil.rmtree(folder)


@pytest.mark.usefixtures("wrongs")
@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence_and_exit_code_2(quick, case):
    options, words = WRONG[case]
    run = [] if options[0] in ("wordz", "text", "changed") else ["words"]
    done = quick("translate", *run, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.splitlines()[-1].startswith("regard: ")
    assert done.stdout == ""
