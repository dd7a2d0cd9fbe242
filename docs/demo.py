"""Record the two commands of the README in a terminal and draw the session as an animated SVG.

python docs/demo.py [SESSION.json]

Without a file, it runs the commands (two minutes on a quiet machine) and writes build/demo.json, their output with its
times. With a file, it only draws.
"""

import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HERE = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 100, 24
SPEED = 5  # the animation is this many times as fast as the session
TYPING, PAUSE, HOLD = 0.04, 0.8, 4.0  # seconds of the animation: a typed character, before a command, the end
FRAME = 0.2  # shortest time between two frames of the animation
CELL, LINE, LEFT, TOP = 8.43, 20, 16, 52  # pixels
READY = "Ctrl-C ends it"  # the last line of `regard serve`
CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")

STYLE = """
svg{--back:#fff;--bar:#eceff3;--text:#1f2328;--dim:#59636e;--cyan:#0b6e8a;--edge:#d1d9e0}
@media(prefers-color-scheme:dark){
svg{--back:#0d1117;--bar:#161b22;--text:#e6edf3;--dim:#9198a1;--cyan:#56d4dd;--edge:#3d444d}}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--text);white-space:pre}
.dim{fill:var(--dim)}.c{fill:var(--cyan)}.p{font-weight:700}.box{fill:var(--back);stroke:var(--edge)}.o{visibility:hidden}
"""


class Event(NamedTuple):
    """A piece of output."""

    seconds: float  # since the command began
    text: str


Cell = tuple[str, str]  # a character and its class
Lines = tuple[tuple[Cell, ...], ...]


class Session(NamedTuple):
    """A command and what it printed."""

    command: str
    events: list[Event]


def commands() -> list[str]:
    """The commands of the README's second section."""
    block = (ROOT / "README.md").read_text("utf-8").partition("## The two commands")[2].split("```")[1]
    return [line.partition("#")[0].strip() for line in block.splitlines()[1:]]


def record(command: str, folder: Path) -> Session:
    """Run a command in a terminal of its own. `regard serve` is ended when its page is ready."""
    words = [sys.executable, "-m", *command.split(), *(["--no-browser"] if "serve" in command else [])]
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("SSH_CONNECTION", None)  # no hint about tunnels
    began, events = time.monotonic(), []
    child = subprocess.Popen(words, cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    while select.select([controller], [], [], 600)[0]:
        try:
            text = os.read(controller, 65536).decode("utf-8", "replace")
        except OSError:  # the end, on Linux
            break
        events.append(Event(round(time.monotonic() - began, 3), text))
        if not text or READY in "".join(event.text for event in events[-3:]):
            break
    child.terminate()
    child.wait()
    os.close(controller)
    return Session(command, events)


class Screen:
    """A terminal: text, carriage return, erased lines, cursor up, and the style of numbers."""

    def __init__(self) -> None:
        self.lines: list[list[Cell]] = [[]]
        self.row, self.column, self.style = 0, 0, ""

    def write(self, text: str) -> None:
        for codes, letter, control, plain in CODE.findall(text):
            for character in plain:
                if self.column == COLUMNS:
                    self._down()
                    self.column = 0
                line = self.lines[self.row]
                line += [(" ", "")] * (self.column - len(line))
                line[self.column : self.column + 1] = [(character, self.style)]
                self.column += 1
            if control == "\n":
                self._down()
            elif control == "\r":
                self.column = 0
            elif letter == "K":
                del self.lines[self.row][0 if codes == "2" else self.column :]
            elif letter == "A":
                self.row = max(0, self.row - int(codes or 1))
            elif letter == "m":
                self.style = "c" if "36" in codes.split(";") else "" if codes in ("", "0") else self.style

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def shown(self) -> Lines:
        return tuple(map(tuple, self.lines))


class Frame(NamedTuple):
    """What is shown from a moment of the animation on."""

    at: float
    lines: Lines
    clock: str  # seconds of the command, and its number


def frames(sessions: list[Session]) -> Iterator[Frame]:
    """The frames of the animation: each command is typed, then its output follows, faster than it was."""
    screen, now = Screen(), 0.0
    for session in sessions:
        screen.style = "p"
        screen.write("$ ")
        yield Frame(now, screen.shown(), "")
        now += PAUSE
        for character in session.command:
            screen.write(character)
            now += TYPING
            yield Frame(now, screen.shown(), "")
        screen.style = ""
        screen.write("\r\n")
        now += PAUSE / 2
        start, last = now, -1.0
        for event, after in pairwise([*session.events, Event(float("inf"), "")]):
            screen.write(event.text)
            at = event.seconds / SPEED
            if at - last >= FRAME or after.seconds / SPEED - at >= FRAME:
                last, now = at, start + at
                yield Frame(now, screen.shown(), f"{event.seconds:.0f} s")
        screen.column = 0
        now += PAUSE
    yield Frame(now + HOLD, (), "")  # the end


def spans(moments: list[Frame]) -> Iterator[tuple[int, float, float, tuple[Cell, ...]]]:
    """(row, begin, end, cells) of every line for as long as it does not change; the clock is row -1."""
    height = max(len(frame.lines) for frame in moments)
    for row in range(-1, height):
        begin, shown = 0.0, ()
        for frame in moments:
            clock = tuple((character, "dim") for character in frame.clock)
            line = clock if row < 0 else frame.lines[row] if row < len(frame.lines) else ()
            if line != shown:
                if shown:
                    yield row, begin, frame.at, shown
                begin, shown = frame.at, line


def runs(cells: tuple[Cell, ...]) -> str:
    """The cells as text, with a tspan for every change of style."""
    parts: list[list[str]] = []
    for character, style in cells:
        if not parts or parts[-1][1] != style:
            parts.append(["", style])
        parts[-1][0] += character
    escaped = ((html.escape(text, quote=False), style) for text, style in parts)
    return "".join(f'<tspan class="{style}">{text}</tspan>' if style else text for text, style in escaped)


def draw(sessions: list[Session]) -> str:
    """The animated SVG. Without animation, for those who prefer less motion, it shows the end."""
    moments = list(frames(sessions))
    length, height = moments[-1].at, max(len(frame.lines) for frame in moments)
    wide, high = round(2 * LEFT + COLUMNS * CELL), TOP + height * LINE
    rules, texts = [], []
    for number, (row, begin, end, cells) in enumerate(spans(moments)):
        stays = end == length
        first, last = (f"{100 * at / length:.2f}%" for at in (begin, end))
        hide = "" if stays else f"{last}{{visibility:hidden}}"
        rules.append(f"@keyframes k{number}{{0%{{visibility:hidden}}{first}{{visibility:visible}}{hide}}}")
        x, y = (wide - LEFT, 24) if row < 0 else (LEFT, TOP + row * LINE + 6)
        given = f' class="{"" if stays else "o"}" text-anchor="{"end" if row < 0 else "start"}"'
        given = given.replace(' class=""', "").replace(' text-anchor="start"', "")
        name = f"animation:k{number} {length:.1f}s step-end infinite"
        texts.append(f'<text x="{x}" y="{y}"{given} style="{name}">{runs(cells)}</text>')
    title = f"two commands, {SPEED} times as fast"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"',
            ' role="img" aria-label="A terminal: regard train shows loss, speed and time left; regard serve its page">',
            f"<style>{STYLE}@media(prefers-reduced-motion:reduce){{text{{animation:none!important}}}}",
            *rules,
            "</style>",
            f'<rect class="box" x=".5" y=".5" width="{wide - 1}" height="{high - 1}" rx="8"/>',
            f'<path d="M1 36V8a7 7 0 0 1 7-7h{wide - 16}a7 7 0 0 1 7 7v28z" fill="var(--bar)"/>',
            f'<text class="dim" x="{LEFT}" y="24">{title}</text>',
            *texts,
            "</svg>\n",
        ]
    )


def main(given: list[str]) -> None:
    if given:
        saved = json.loads(Path(given[0]).read_text("utf-8"))
        sessions = [Session(one["command"], [Event(*event) for event in one["events"]]) for one in saved]
    else:
        with tempfile.TemporaryDirectory() as folder:
            sessions = [record(command, Path(folder)) for command in commands()]
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / "demo.json").write_text(json.dumps([one._asdict() for one in sessions]), "utf-8")
    picture = draw(sessions)
    (HERE / "demo.svg").write_text(picture, "utf-8")
    print(f"{HERE / 'demo.svg'}: {len(picture) / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
