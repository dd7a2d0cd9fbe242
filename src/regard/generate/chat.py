"""A conversation with a language model that was tuned for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from regard.data.chats.template import ChatFormat, Message
from regard.generate.interactive import answer_lines, write_stream
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
        said = write_stream(self.generator, Prompt(ids, len(messages)), out)
        self.messages = [*messages, {"role": "assistant", "content": said}]
        return said

    def run(self, read_line: Callable[[], str], out: TextIO, err: TextIO) -> None:
        """Answer line after line; /reset begins a new conversation."""

        def answer(line: str) -> None:
            if line.strip() == "/reset":
                self.messages = list(self._begin)
            elif line.strip():
                self.answer(line, out)

        answer_lines(read_line, answer, err)
