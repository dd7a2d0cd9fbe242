"""A conversation with a language model that was tuned for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from regard.data.chats.template import ChatFormat, Message
from regard.errors import UserError
from regard.generate.text import Prompt, TextGenerator


class Conversation:
    """A conversation and its generator."""

    def __init__(self, generator: TextGenerator, form: ChatFormat, system: str | None = None):
        self.generator, self.form = generator, form
        self._begin: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[Message] = list(self._begin)

    def answer(self, message: str, out: TextIO | None = None) -> str:
        """The answer to a message, written to ``out`` while it is generated; both become part of the conversation."""
        messages = [*self.messages, {"role": "user", "content": message}]
        ids = tuple(self.generator.tokenizer.encode(self.form.render(messages)).tolist())
        pieces: list[str] = []
        try:
            for _, piece, _ in self.generator.stream([Prompt(ids, len(messages))]):
                pieces.append(piece)
                if out is not None:
                    out.write(piece)
                    out.flush()
        except KeyboardInterrupt:
            pass  # what was generated stays
        if out is not None:
            out.write("\n")
        said = "".join(pieces)
        self.messages = [*messages, {"role": "assistant", "content": said}]
        return said

    def run(self, read_line: Callable[[], str], out: TextIO, err: TextIO) -> None:
        """Answer line after line, until ``read_line`` raises EOFError or returns /quit."""
        while True:
            try:
                line = read_line()
            except EOFError:
                return
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /quit quits)", file=err, flush=True)
                continue
            if line.strip() == "/quit":
                return
            if line.strip() == "/reset":
                self.messages = list(self._begin)
            elif line.strip():
                try:
                    self.answer(line, out)
                except UserError as problem:
                    print(f"regard: {problem}", file=err, flush=True)
