"""Runs the code blocks of the README and the docs: python tests/docs_run.py EMPTY_FOLDER fast|slow [MORE_PAGES].

In a process of its own, since blocks register parts. Everything is real except for the scale: a training takes two
steps of a reduced model (`shrunk`) on a small text, without a network. A command runs unless a table has a reason.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import random
import re
import shutil
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from docs_kit import PAGES, ROOT, Block, Command, blocks, commands, name_of
from regard import cli
from regard.commands import train as train_command
from regard.config.parts import listing, load_declared
from regard.data import PairsConfig, Source, TextConfig
from regard.errors import UserError
from regard.report import probes
from regard.train import Experiment

#: Commands that are only parsed, by their first words, each with its reason; `VALID` checks their names and keys.
PARSED = {
    "regard serve": "runs until Ctrl-C; tests/serve starts it",
    "regard train shakespeare --processes": "starts processes; tests/train/test_launched_ranks.py does",
    "regard study family": "trains for minutes; tests/studies runs it at a small scale",
    "regard data get": "needs the network, or a large archive",
    "regard prove hf:FOLDER": "needs transformers, which is not a dependency",
    "regard describe --model gpt3-175b": "counting 96 layers takes ten seconds; tests/models runs it",
}
#: Commands that take more than a few seconds: they run with `slow`.
SLOW = {
    "regard approximate": "measures every approximation",
    "regard compare": "trains several models",
    "regard prove": "tests every claim",
}
#: Words that stand for something else in the small setting.
WORDS = {"RUN": "translation", "hf:FOLDER": "hf:folder", "3000": "4", "2000": "1"}
#: Options that are added unless the command has them.
ADDED = {"regard generate": ("--tokens", "8"), "regard compare": ("--scale", "0.01", "--workers", "1")}
#: Exit codes that are an answer: the doctor finds something to say about two steps.
ANSWERS = {"regard doctor": (0, 1)}

DRAW = random.Random(1)


def words(count: int) -> list[str]:
    return ["".join(DRAW.choices("abcdefghiklmnoprstuvw", k=DRAW.randint(3, 7))) for _ in range(count)]


VERSES = "".join(f"{name}:\nTo {' '.join(words(8))}!\n\n" for name in ("ROMEO", "JULIET") * 60)
PAIRS = [("Turn off the light.", "Licht aus."), ("The battery is low.", "Die Batterie ist leer.")]
PAIRS += [(" ".join(words(4)), " ".join(words(4))) for _ in range(150)]


def folder_of_files(folder: Path) -> None:
    """The files that the pages name."""
    for name in ("text", "my", "notes", "book", "other", "train", "valid", "test", "scene"):
        (folder / f"{name}.txt").write_text(VERSES, "utf-8")
    (folder / "openings.txt").write_text("ROMEO:\nJULIET:\n", "utf-8")
    for name in ("corpus", "wikitext-103"):
        for part in ("train", "valid", "test"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{part}.txt").write_text(VERSES, "utf-8")
    for name in ("my.tsv", "pairs.tsv"):
        (folder / name).write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS), "utf-8")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, side in (("en", 0), ("de", 1)):
            lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
            (folder / "multi30k" / f"{part}.{language}").write_text(lines, "utf-8")
    records = {
        "chats": [{"prompt": "Hi", "completion": f"Yes{n}"} for n in range(6)],
        "preferences": [{"prompt": "Hi", "chosen": f"Yes{n}", "rejected": "No"} for n in range(6)],
        "questions": [{"question": str(n), "choices": ["odd", "even"], "answer": n % 2} for n in range(6)],
        "translations": [{"english": "light", "answer": "Licht"}],
    }
    for name, rows in records.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (folder / "reviews.csv").write_text("text,answer\nGood,positive\nBad,negative\n", "utf-8")
    shutil.copytree(ROOT / "docs" / "extend", folder / "docs" / "extend")
    shutil.copy(ROOT / "docs" / "extend" / "mask.py", folder / "my_parts.py")


def shrunk(experiment: Experiment) -> Experiment:
    """Two steps of the reduced model, on a local text where a source would be fetched."""
    budget: dict[str, Any] = {"steps": 2, "tokens": None, "epochs": None, "seconds": None}
    train = replace(experiment.train, **budget, evaluate_every=None, save_every=1, device="cpu")
    data, small = experiment.data, experiment.model.reduced()
    if isinstance(data, TextConfig):
        data = replace(data, batch=2, path=data.path or "text.txt")
    elif isinstance(data, PairsConfig):
        data = replace(data, batch=256, path=data.path or "pairs.tsv")
    return replace(experiment, train=train, data=data, model=small)


def no_network(self: Source, cache: Path | None = None, given: Path | None = None) -> Path:
    raise UserError(f"a block fetches {self.name}, but tests have no network")


#: How to check the names that a parsed command is given.
VALID: dict[str, Callable[..., object]] = {
    "serve": lambda options: None,
    "train": lambda options, keys: READ(options.recipe, keys),
    "prove": lambda options: None,
    "study": lambda options: importlib.import_module("regard.studies").get(options.name),
    "data": lambda options: importlib.import_module("regard.data.sources").find_source(options.name),
    "describe": lambda options, keys: READ(options.recipe, keys),
}
READ = train_command.read_experiment


@contextlib.contextmanager
def parsing_only() -> Iterator[None]:
    """A command checks its options and names, and does nothing else."""

    def find(name: str) -> Callable[..., int]:
        @functools.wraps(real(name))
        def checked(*given: object) -> int:
            VALID[name](*given)
            return 0

        return checked

    real, cli.find = cli.find, find
    try:
        yield
    finally:
        cli.find = real


def starts(command: Command, table: dict[str, Any]) -> Any:
    """The entry of the table that the command begins with; None if there is none."""
    return next((table[begin] for begin in table if f"{command} ".startswith(f"{begin} ")), None)


def run_command(command: Command, slow: bool) -> None:
    """Run or parse `regard ...`; check that other programs are called with what exists."""
    program, *words = command.words
    if program != "regard":
        return check_other(program, words)
    parse = starts(command, PARSED)
    if parse is None and (starts(command, SLOW) is not None) != slow:
        return None
    added = starts(command, ADDED)
    words = [*(WORDS.get(word, word) for word in words), *(added if added and added[0] not in words else ())]
    output, sys.stdin = io.StringIO(), io.StringIO("ROMEO:\n")
    only = parsing_only() if parse else contextlib.nullcontext()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), only:
        code = cli.main([*words, "--debug"])
    assert code in (starts(command, ANSWERS) or (0,)), f"exit code {code}: {output.getvalue()[-2000:]}"


def check_other(program: str, words: list[str]) -> None:
    """A target of make, a module of Python or the extras of an installation exist."""
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), f"no target {words}"
    elif program == "python":
        assert words[0] == "-m", f"no rule for python {words}"
        own = (ROOT / words[1].replace(".", "/")).with_suffix(".py").exists()
        assert own or importlib.util.find_spec(words[1].partition(".")[0]), f"no module {words[1]}"
    else:
        assert words[0] == "install", f"no rule for pip {words}"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        assert all(extra in extras for word in words for extra in re.findall(r"[\[,](\w+)", word)), f"no extra {words}"


def run_shell(block: Block, names: dict[str, Any], slow: bool) -> None:
    for command in commands(block, Path.cwd()):
        began = time.perf_counter()
        try:
            run_command(command, slow)
        except BaseException as error:
            raise AssertionError(f"{command.place}: {command}: {error}") from error
        report_time(began, command.place, str(command))


def run_python(block: Block, names: dict[str, Any], slow: bool) -> None:
    if not slow:
        lines = "\n" * block.line  # so that a traceback has the lines of the page
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(lines + block.code, block.page, "exec"), names)


def run_toml(block: Block, names: dict[str, Any], slow: bool) -> None:
    """A pyproject.toml with parts, or an experiment."""
    if "tool" in tomllib.loads(block.code):
        Path("pyproject.toml").write_text(block.code, "utf-8")
        load_declared(())
        assert listing()["my_parts.py"], "no part was loaded"
    else:
        Path("experiment.toml").write_text(block.code, "utf-8")
        READ("experiment.toml", {})


#: By language; a block of another language fails. `text` is a drawing or a listing.
RULES: dict[str, Callable[[Block, dict[str, Any], bool], None]] = {
    "sh": run_shell,
    "python": run_python,
    "toml": run_toml,
    "text": lambda block, names, slow: None,
}


def run_page(page: Path, folder: Path, slow: bool) -> Iterator[tuple[str, str]]:
    """Run the blocks in order, in one namespace; the place and the message of every error."""
    os.chdir(folder)
    found = blocks(page)
    if any("--name wide" in block.code for block in found):  # the page trains it
        shutil.rmtree(folder / "runs" / "wide")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in found:
        began = time.perf_counter()
        try:
            assert block.language in RULES, f"no rule for the language {block.language!r}; there are {', '.join(RULES)}"
            RULES[block.language](block, names, slow)
        except BaseException as error:
            shown = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc(limit=-3)
            yield block.place, shown
        report_time(began, block.place, block.language)


def report_time(began: float, place: str, what: str) -> None:
    """With DOCS_TIMES=1 in the environment, print how long a block or command took."""
    if os.environ.get("DOCS_TIMES"):
        print(f"{time.perf_counter() - began:6.2f} s  {place}  {what}", file=sys.stderr, flush=True)


def prepare(folder: Path) -> Path:
    """Make trainings small and the network unreachable; a folder with the files that the pages name."""
    base = folder / "base"
    base.mkdir()
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    folder_of_files(base)
    train_command.read_experiment = lambda *given: shrunk(READ(*given))
    Source.fetch = no_network
    probes.SAMPLE, probes.SENTENCES = 8, 1  # tokens of a sample, or its translations
    return base


def main(folder: Path, slow: bool, more: list[Path]) -> None:
    """Run the pages and print the errors by place, as JSON. The notes have a test for each page: tests/notes."""
    base = prepare(folder)
    os.chdir(base)
    for line in ("regard train translate-transformer --name translation", "regard train --name wide"):
        run_command(Command("setup", [*line.split()]), slow=False)
    shutil.copytree(base / "runs" / "wide", base / "runs" / "demo")
    errors: dict[str, str] = {}
    for page in [*(page for page in PAGES if page.parent.name != "notes"), *more]:
        copy = folder / name_of(page).replace("/", "-")
        shutil.copytree(base, copy)
        errors |= run_page(page, copy, slow)
    print(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2] == "slow", [Path(page).resolve() for page in sys.argv[3:]])
