"""The code blocks of the README and the docs, and the commands in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: A shell in which these programs record their arguments; it has no others, and it stops at the first error.
PROGRAMS = ("regard", "make", "pip", "python")
RECORD = "".join(f'{name}() {{ printf "%s\\0" "${{BASH_LINENO[0]}}" "$#" {name} "$@" >&3; }}; ' for name in PROGRAMS)
SHELL = f'set -euo pipefail; {RECORD} source() {{ :; }}; cat() {{ test -f "$1"; }}\n'


class Block(NamedTuple):
    """A fenced code block."""

    page: str  # relative to the repository
    line: int  # of the opening fence, from 1
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """A command of a shell block."""

    place: str
    words: list[str]  # the program and its arguments, as the shell passes them

    def __str__(self) -> str:
        return " ".join(self.words)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if ROOT in page.parents else page.name


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent, language, code = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(name_of(page), line, language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE)))
    return found


def prose(page: Path) -> list[str]:
    """The lines of a page outside of code blocks, which are replaced by empty lines."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text("utf-8")).splitlines()


def commands(block: Block, folder: Path) -> list[Command]:
    """The commands of a shell block, split and unquoted by a real shell in a folder with the files that they read."""
    with (folder / "recorded").open("w+b") as recorded:
        done = subprocess.run(
            [shutil.which("bash") or "bash", "-c", f"exec 3>&1 >&2\n{SHELL}{block.code}"],
            cwd=folder,
            env={**os.environ, "PATH": os.devnull},
            stdout=recorded,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 0, f"{block.place}: {done.stderr}"
        recorded.seek(0)
        fields = recorded.read().decode().split("\0")[:-1]
    found = []
    while fields:
        line, count = int(fields[0]) - 2, int(fields[1])
        found.append(Command(f"{block.page}:{block.line + line}", fields[2 : 3 + count]))
        fields = fields[3 + count :]
    return found
