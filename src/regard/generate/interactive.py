"""Interactive generation: each typed line is appended to the text, and the model continues it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from regard.errors import UserError
from regard.generate.text import Prompt, TextGenerator, Throughput

HELP = """\
Type a line, and the model continues the text; after an empty line it continues the text as it is.
Ctrl-C             stop generating; Ctrl-D quits
/reset             delete the text so far
/temperature 0.5   change an option; likewise /top-k, /top-p, /min-p, /repetition, /tokens, /seed
/quit              quit"""


def answer_lines(read_line: Callable[[], str], answer: Callable[[str], None], err: TextIO) -> None:
    """Answer line after line, until ``read_line`` raises EOFError or returns /quit; errors are reported on ``err``."""
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
        try:
            answer(line)
        except UserError as problem:
            print(f"regard: {problem}", file=err, flush=True)


def write_stream(generator: TextGenerator, prompt: Prompt, out: TextIO | None) -> str:
    """Generate a text, written to ``out`` piece by piece; Ctrl-C ends it, and what was generated is returned."""
    pieces: list[str] = []
    try:
        for _, piece, _ in generator.stream([prompt]):
            pieces.append(piece)
            if out is not None:
                out.write(piece)
                out.flush()
    except KeyboardInterrupt:
        pass  # the generated text stays
    if out is not None:
        out.write("\n")
        out.flush()
    return "".join(pieces)


@dataclass
class InteractiveSession:
    """The text of a session and its generator. The model's context is exactly the text that was shown."""

    generator: TextGenerator
    out: TextIO
    err: TextIO
    text: str = ""
    turns: int = 0  # the random stream of the next turn

    def run(self, read_line: Callable[[], str]) -> None:
        """Answer line after line."""
        answer_lines(
            read_line, lambda line: (self._execute if line.startswith("/") else self._generate)(line), self.err
        )

    def _generate(self, line: str) -> None:
        """Continue the text so far and the line, which begins a new line of it."""
        border = "\n" if line and self.text and not self.text.endswith("\n") else ""
        text = self.text + border + line
        if not text:
            return
        self.generator.tokenizer.encode(line)  # an error should be about the line, and leave the text unchanged
        tokens = self.generator.tokenizer.encode(text).tolist()
        self.text, self.generator = text, replace(self.generator, throughput=Throughput())
        turn, self.turns = self.turns, self.turns + 1
        self.text += write_stream(self.generator, Prompt(tuple(tokens), turn), self.out)
        self._report(f"({self.generator.throughput})")

    def _execute(self, line: str) -> None:
        name, _, value = line[1:].strip().partition(" ")
        if name == "help":
            self._report(HELP)
        elif name == "reset":
            self.text = ""
        else:
            self.generator = with_option(self.generator, name, value.strip())

    def _report(self, text: str) -> None:
        print(text, file=self.err, flush=True)


def with_option(generator: TextGenerator, name: str, value: str) -> TextGenerator:
    """The generator with one option changed; a UserError names the problem."""
    types = {"temperature": float, "top-p": float, "min-p": float, "repetition": float}
    types |= {"top-k": int, "tokens": int, "seed": int}
    if name not in types:
        raise UserError(f"there is no /{name}; /help lists the commands")
    try:
        number = None if (name, value) == ("top-k", "none") else types[name](value)
    except ValueError:
        raise UserError(f"/{name} needs a number, not {value!r}") from None
    if name in ("tokens", "seed"):
        return replace(generator, **{"length" if name == "tokens" else "seed": number})
    try:
        return replace(generator, sampling=replace(generator.sampling, **{name.replace("-", "_"): number}))
    except ValueError as problem:
        raise UserError(f"/{str(problem).replace('_', '-')}") from None
