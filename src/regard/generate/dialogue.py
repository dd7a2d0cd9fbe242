"""Writing in turns: a line is typed, the model goes on from it, and both become the text so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from regard.errors import UserError
from regard.generate.text import Pace, Prompt, TextGenerator

HELP = """\
Type, and the text goes on; an empty line lets it go on as it is. Ctrl-C stops an answer, Ctrl-D leaves.
/reset             forget the text so far
/temperature 0.5   likewise /top-k, /top-p, /min-p, /repetition, /tokens, /seed
/quit              leave"""


@dataclass
class Dialogue:
    """The text of a conversation, and who goes on with it. What is remembered is what was shown."""

    author: TextGenerator
    out: TextIO
    err: TextIO
    text: str = ""
    turns: int = 0  # each turn draws from a stream of its own

    def run(self, ask: Callable[[], str]) -> None:
        """Turn after turn, until ``ask`` has no more lines (EOFError) or a line says /quit."""
        while True:
            try:
                line = ask()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._tell("\n(Ctrl-D or /quit leaves)")
                continue
            if line.strip() == "/quit":
                return
            try:
                if line.startswith("/"):
                    self._obey(line)
                else:
                    self._answer(line)
            except UserError as problem:
                self._tell(f"regard: {problem}")

    def _answer(self, line: str) -> None:
        """Go on from the text so far and the line, which begins a new line of it."""
        border = "\n" if line and self.text and not self.text.endswith("\n") else ""
        text = self.text + border + line
        if not text:
            return
        self.author.tokenizer.encode(line)  # a refusal should speak of the line, and leave the text as it was
        tokens = self.author.tokenizer.encode(text).tolist()
        self.text, self.author = text, replace(self.author, pace=Pace())
        turn, self.turns = self.turns, self.turns + 1
        try:
            for _, piece, _ in self.author.write([Prompt(tuple(tokens), turn)]):
                self.text += piece
                self.out.write(piece)
                self.out.flush()
        except KeyboardInterrupt:
            pass  # what was written stays
        self.out.write("\n")
        self.out.flush()
        self._tell(f"({self.author.pace})")

    def _obey(self, line: str) -> None:
        name, _, value = line[1:].strip().partition(" ")
        if name == "help":
            self._tell(HELP)
        elif name == "reset":
            self.text = ""
        else:
            self.author = changed(self.author, name, value.strip())

    def _tell(self, text: str) -> None:
        print(text, file=self.err, flush=True)


def changed(author: TextGenerator, name: str, value: str) -> TextGenerator:
    """An author with one setting changed; a UserError says what is wrong with it."""
    kinds = {"temperature": float, "top-p": float, "min-p": float, "repetition": float}
    kinds |= {"top-k": int, "tokens": int, "seed": int}
    if name not in kinds:
        raise UserError(f"there is no /{name}; /help lists what there is")
    try:
        number = None if (name, value) == ("top-k", "none") else kinds[name](value)
    except ValueError:
        raise UserError(f"/{name} wants a number, not {value!r}") from None
    if name == "tokens":
        return replace(author, count=number)
    if name == "seed":
        return replace(author, seed=number)
    try:
        return replace(author, sampling=replace(author.sampling, **{name.replace("-", "_"): number}))
    except ValueError as problem:
        raise UserError(f"/{str(problem).replace('_', '-')}") from None
