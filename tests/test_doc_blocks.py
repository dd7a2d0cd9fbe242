"""Every code block of the README and the docs runs, by the rules of docs_run.py; so does what is written `in prose`."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import docs_run
from docs_kit import PAGES, ROOT, Block, blocks, commands, name_of, prose
from regard.commands import COMMANDS, find, options_of
from regard.config.command_line import flag_name, options_of_table

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the blocks are for a POSIX shell")

#: Blocks that must fail, each with a word of the reason; they follow the pages in the same process.
BROKEN = {
    "```python\nimport regard\nregard.attendd\n```": "attendd",
    "```python\nassert 1 + 1 == 3\n```": "line 7",
    "```sh\nregard train shakespear\n```": "shakespear",
    "```sh\nregard train --model.widht 8\n```": "widht",
    "```sh\nregard generate RUN --tokns 3\n```": "--tokns",
    "```sh\nregard serve --prt 80      # only parsed\n```": "--prt",
    "```sh\nregard data get stou       # only parsed\n```": "stou",
    "```sh\npython -m bench.nothing\n```": "no module",
    "```sh\nmake tset\n```": "no target",
    "```sh\npip install 'regard[server]'\n```": "no extra",
    "```sh\nrm -r runs\n```": "rm",
    "```toml\n[train]\nstpes = 8\n```": "stpes",
    "```json\n{}\n```": "no rule",
    "```\nregard train\n```": "no rule",
}


def errors(folder: Path, speed: str, *pages: Path) -> dict[str, str]:
    """The errors of a process that runs the blocks, by place."""
    command = [sys.executable, str(ROOT / "tests" / "docs_run.py"), str(folder), speed, *map(str, pages)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_block_runs(tmp_path: Path) -> None:
    broken, folder = tmp_path / "broken.md", tmp_path / "blocks"
    broken.write_text("\n\n".join(BROKEN))
    folder.mkdir()
    found = errors(folder, "fast", broken)
    failed = {block.place: found.pop(block.place, "") for block in blocks(broken)}
    assert not found, "\n".join(f"{place}: {message}" for place, message in found.items())
    for (place, message), (block, reason) in zip(failed.items(), BROKEN.items(), strict=True):
        assert reason in message, f"{place} {block}: {message}"


@pytest.mark.slow
def test_every_slow_command_runs(tmp_path: Path) -> None:
    assert errors(tmp_path, "slow") == {}


#: Pages that may have indented blocks, each with the reason.
INDENTED = {"docs/design.md": "drawings of names, which tests/test_design.py looks up"}


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in INDENTED], ids=name_of)
def test_code_is_fenced(page: Path) -> None:
    """A block that is code by its indentation has no language, so no rule would run it."""
    lines = prose(page)
    for number, line in enumerate(lines):
        indented = line.startswith("    ") and not lines[number - 1].strip()
        assert not indented, f"{name_of(page)}:{number + 1}: put code between ``` and name its language"
    assert not any("```" in line for line in lines), f"{name_of(page)}: a fence is not closed"


def test_every_exception_is_used(tmp_path: Path) -> None:
    docs_run.folder_of_files(tmp_path)
    shell = [block for page in PAGES for block in blocks(page) if block.language == "sh"]
    found = [command for block in shell for command in commands(block, tmp_path)]
    for table in (docs_run.PARSED, docs_run.SLOW, docs_run.ADDED, docs_run.ANSWERS):
        for begin in table:
            assert any(docs_run.starts(command, {begin: True}) for command in found), f"no block has {begin}"
    for word in docs_run.WORDS:
        assert any(word in command.words for command in found), f"no block has {word}"


SPANS = [(name_of(page), span) for page in PAGES for span in re.findall(r"`([^`\n]+)`", "\n".join(prose(page)))]


@pytest.mark.parametrize(("page", "span"), [pair for pair in SPANS if pair[1].startswith("regard ")])
def test_commands_in_prose_exist(page: str, span: str) -> None:
    """`regard COMMAND --option VALUE`: the command has the option, or takes keys with a dot."""
    command, *words = span.removeprefix("regard ").split() or [""]
    if command in ("--help", "COMMAND"):
        return
    assert command in COMMANDS, f"{page}: {span}"
    flags = {flag_name(name) for name in options_of_table(options_of(command))}
    takes_keys = "keys" in inspect.signature(find(command)).parameters
    for flag in (word[2:].partition("=")[0] for word in words if word.startswith("--")):
        key = takes_keys and (flag in ("model", "data", "task") or "." in flag)
        assert key or flag.removeprefix("no-") in {*flags, "help", "debug"}, f"{page}: {span}"


@pytest.mark.parametrize(("page", "span"), [pair for pair in SPANS if re.match(r"make |python -m ", pair[1])])
def test_targets_and_modules_in_prose_exist(page: str, span: str) -> None:
    program, *words = span.split()
    docs_run.check_other(program, words)


def test_a_block_knows_its_line_and_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```sh\n# a comment\nregard a 'b c' \\\n    $'\\n' && make d   # more\n```\n")
    (block,) = blocks(page)
    assert block == Block("page.md", 3, "sh", "# a comment\nregard a 'b c' \\\n    $'\\n' && make d   # more\n")
    first, second = commands(block, tmp_path)
    assert (first.place, first.words) == ("page.md:5", ["regard", "a", "b c", "\n"])
    assert second.words == ["make", "d"]
