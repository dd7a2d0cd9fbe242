"""`regard generate` as a person runs it: real processes on a model that was really trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from generate_kit import REGARD, environment
from hypothesis import given
from hypothesis import strategies as st

from regard.cli import main
from regard.commands.generate import swallowed, unescaped

WARM = ("--temperature", "1.5", "--tokens", "40")


def texts(done) -> list[dict]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["texts"]


@pytest.fixture
def inside(room, monkeypatch, capsys):
    """`inside(*options)`: the texts of `regard generate`, without the start of another process."""
    monkeypatch.chdir(room)

    def inside(*options: str) -> list[dict]:
        assert main(["generate", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)["texts"]

    return inside


def test_it_streams_and_says_how_fast(regard):
    done = regard("generate", "--prompt", "to be", "--tokens", "60", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("to be")
    assert len(done.stdout) == 5 + 60 + 1
    assert "prompt: 5 tokens at " in done.stderr
    assert "generated: 60 tokens at " in done.stderr


def test_a_run_that_was_not_named_is_told(regard):
    unnamed = regard("generate", "--tokens", "2", "--json")
    assert unnamed.stderr.splitlines()[0] == f"written by {Path('runs', 'tiny')}, step 40"
    assert "written by" not in regard("generate", "tiny", "--tokens", "2").stderr


@pytest.mark.parametrize("name", ["tiny", "runs/tiny"])
@pytest.mark.parametrize("option", ["--prompt", "--stop"])
def test_a_run_after_an_option_of_several_values_is_the_run(room, monkeypatch, capsys, option, name):
    """`--prompt TEXT RUN` reads as two prompts; a newer run must not answer in the place of the one that was meant."""
    monkeypatch.chdir(room)
    newer = room / "runs" / "newer"
    shutil.copytree(room / "runs" / "tiny", newer)
    try:
        os.utime(newer / "config.toml", (2**31, 2**31))
        assert main(["generate", "--tokens", "4", "--json", option, "to be", name]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["run"] == str(Path("runs", "tiny"))
        assert [t["prompt"] for t in json.loads(shown.out)["texts"]] == ["to be" if option == "--prompt" else "\n"]
        assert f"written by {Path('runs', 'tiny')}, step 40" in shown.err
        # With a run in its place, or as the only value, it is what it says it is.
        assert main(["generate", "newer", "--tokens", "4", "--json", option, "to be", "be"]) == 0
        assert json.loads(capsys.readouterr().out)["run"] == str(Path("runs", "newer"))
        assert main(["generate", "--tokens", "4", "--json", option, "question"]) == 0
        assert json.loads(capsys.readouterr().out)["run"] == str(Path("runs", "newer"))
    finally:
        shutil.rmtree(newer)


def test_only_what_is_a_run_is_taken_for_one(room, monkeypatch):
    monkeypatch.chdir(room)
    runs = Path("runs")
    assert swallowed(("to", "tiny"), (), runs) == ("tiny", ("to",), ())
    assert swallowed((), ("to", "tiny"), runs) == ("tiny", (), ("to",))
    for prompt in ((), ("tiny",), ("tiny", "to"), ("to", ""), ("to", "cache"), ("to", "x" * 5000), ("to", "a\0b")):
        assert swallowed(prompt, (), runs) == (None, prompt, ())


def test_a_stop_string_may_be_written_with_escapes(inside):
    """In quotes a shell passes on a backslash and an n; that is what people type for a new line."""
    literal = inside(*WARM, "--prompt", "to", "--stop", "\n")
    assert literal[0]["stop"] == "\n"
    assert inside(*WARM, "--prompt", "to", "--stop", r"\n") == literal


@given(st.text(alphabet="nt\\ \n\tab"))
def test_every_text_can_be_written_with_escapes(text):
    written = text.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t")
    assert unescaped(written) == text
    if "\\" not in text:
        assert unescaped(text) == text


def test_many_prompts_at_once_equal_one_by_one(regard, room, inside):
    """Ragged lengths, one past the context, twice each; from the command line, a file and standard input."""
    prompts = ["to", "that is the quest", "or not to be, that is the question", "n"]
    (room / "prompts.txt").write_text("\n".join(prompts[2:]) + "\n\n", encoding="utf-8")
    done = regard("generate", "--json", "--samples", "2", *WARM, "--prompt", *prompts[:2], "--prompts", "prompts.txt")
    together = texts(done)
    assert "the oldest 18 of its tokens are left out" in done.stderr
    assert [(t["prompt"], t["sample"]) for t in together] == [(p, s) for p in prompts for s in (0, 1)]
    assert together[0]["text"] != together[1]["text"]
    backwards = "\n".join(reversed(prompts))
    again = texts(
        regard("generate", "--json", "--samples", "2", "--batch", "3", *WARM, "--prompts", "-", input=backwards)
    )
    assert [t for p in prompts for t in again if t["prompt"] == p] == together
    for prompt in prompts[1:3]:
        assert inside(*WARM, "--prompt", prompt)[0] in together
    shown = regard("generate", "--samples", "2", *WARM, "--prompt", *prompts[:2], "--prompts", "prompts.txt").stdout
    titles = [f"--- {t['prompt']!r} ({t['sample'] + 1} of 2)\n{t['prompt']}{t['text']}\n" for t in together]
    assert shown == "".join(titles)


def test_stop_strings(regard, inside):
    plain = inside(*WARM, "--samples", "8", "--prompt", "to")
    stopped = inside(*WARM, "--samples", "8", "--prompt", "to", "--stop", "t ", "be")
    assert {t["stop"] for t in stopped} >= {"t ", "be"}
    for whole, cut in zip(plain, stopped, strict=True):
        ends = [(whole["text"].find(s) + len(s), whole["text"].find(s)) for s in ("t ", "be") if s in whole["text"]]
        assert cut["text"] == whole["text"][: min(ends)[1]] if ends else whole["text"]
    shown = regard("generate", *WARM, "--prompt", "to", "--stop", "t ", "be")
    assert shown.stdout == f"to{stopped[0]['text']}\n"


def test_all_of_standard_input_is_one_prompt(regard):
    done = regard("generate", "--prompt", "-", "--tokens", "4", "--json", input="to be\nor")
    assert [t["prompt"] for t in texts(done)] == ["to be\nor"]


def test_ways_to_sample(inside):
    greedy = inside("--temperature", "0", "--samples", "2", "--tokens", "40")
    assert greedy[0]["prompt"] == "\n"
    assert greedy[0]["text"] == greedy[1]["text"]
    for narrow in (["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "0.999999"]):
        assert inside(*WARM, *narrow)[0]["text"] == greedy[0]["text"]
    assert inside("--temperature", "0", "--tokens", "40", "--repetition", "30")[0]["text"] != greedy[0]["text"]


def test_a_step_picks_the_checkpoint(regard, inside):
    early = regard("generate", "tiny", "--step", "20", "--json", *WARM)
    assert json.loads(early.stdout)["step"] == 20
    assert texts(early) != inside(*WARM)
    assert inside("--step", "40", *WARM) == inside(*WARM)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_an_interrupt_ends_it_quietly(room):
    command = [*REGARD, "generate", "--tokens", "1000000", "--temperature", "0"]
    process = subprocess.Popen(
        command,
        cwd=room,
        env=environment(room),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    shown = b""
    while b"question" not in shown:
        shown += os.read(process.stdout.fileno(), 4096)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


WRONG = {
    "no tokens": (["--tokens", "0"], "--tokens must be at least 1"),
    "no samples": (["--samples", "0"], "--samples must be at least 1"),
    "no batch": (["--batch", "0"], "--batch must be at least 1"),
    "cold": (["--temperature", "-0.5"], "--temperature must be zero or more"),
    "top-k": (["--top-k", "0"], "--top-k must be at least 1"),
    "top-p": (["--top-p", "0"], "--top-p must be above 0"),
    "top-p too great": (["--top-p", "1.5"], "--top-p must be above 0 and at most 1"),
    "min-p": (["--min-p", "1"], "--min-p must be at least 0 and below 1"),
    "repetition": (["--repetition", "0"], "--repetition must be above 0"),
    "empty prompt": (["--prompt", ""], "a prompt is empty"),
    "empty stop": (["--stop", ""], "--stop is empty"),
    "unknown character": (["--prompt", "to X"], "the character 'X' (U+0058) at position 3"),
    "empty file": (["--prompts", "empty.txt"], "there is no prompt in empty.txt"),
    "no file": (["--prompts", "nowhere.txt"], "nowhere.txt cannot be read"),
    "no text": (["--prompts", "bytes.txt"], "not UTF-8"),
    "standard input twice": (["--prompt", "-", "--prompts", "-"], "give - once"),
    "no such step": (["--step", "7"], "no checkpoint of step 7"),
    "no such device": (["--device", "cuda:99"], "no device 'cuda:99'"),
    "second cpu": (["--device", "cpu:1"], "no device 'cpu:1' here; choose --device from: auto"),
    "nonsense device": (["--device", "toaster"], "no device 'toaster'"),
    "no run": (["nothing"], "there is no run"),
    "no checkpoint": (["bare"], "no checkpoint yet"),
}


@pytest.fixture(scope="module")
def wrongs(room):
    """Everything a mistake can be about."""
    (room / "empty.txt").write_text("\n\n")
    (room / "bytes.txt").write_bytes(b"\xff\xfe\x80")
    bare = room / "runs" / "bare"
    shutil.copytree(room / "runs" / "tiny", bare)
    shutil.rmtree(bare / "checkpoints")
    yield
    shutil.rmtree(bare)


@pytest.mark.usefixtures("wrongs")
@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence_and_exit_code_2(room, monkeypatch, capsys, case):
    options, words = WRONG[case]
    monkeypatch.chdir(room)
    run = [] if options[0] in ("nothing", "bare") else ["tiny"]
    assert main(["generate", *run, *options]) == 2
    shown = capsys.readouterr()
    check_sentence(shown.out, shown.err, words)


@pytest.mark.usefixtures("wrongs")
@pytest.mark.parametrize("case", ["no tokens", "top-p", "unknown character", "empty file", "no checkpoint"])
def test_a_process_ends_likewise(regard, case):
    options, words = WRONG[case]
    done = regard("generate", *([] if options == ["bare"] else ["tiny"]), *options, input="")
    assert done.returncode == 2
    check_sentence(done.stdout, done.stderr, words)


def check_sentence(out: str, err: str, words: str) -> None:
    assert words in err
    assert err.startswith("regard: ")
    assert len(err.splitlines()) == 1
    assert out == ""
