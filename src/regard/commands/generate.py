"""`regard generate`."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RunOptions, is_run
from regard.commands.lines import contents, split, standard_input
from regard.config import option
from regard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from regard.generate import GeneratedText, TextGenerator


@dataclass(frozen=True)
class GenerateOptions(RunOptions):
    """Options of `regard generate`."""

    prompt: tuple[str, ...] = option(
        (),
        "the text to continue, taken literally; default: a new line; several prompts are decoded as one batch; - is "
        "standard input",
    )
    prompts: str | None = option(None, "a file with a prompt on each line; - reads standard input", metavar="FILE")
    samples: int = option(1, "number of texts per prompt")
    tokens: int = option(500, "maximum number of new tokens")
    temperature: float = option(0.8, "sampling temperature; 0 is greedy decoding")
    top_k: int | None = option(None, "sample from the k most likely tokens only")
    top_p: float = option(1.0, "sample from the most likely tokens with this total probability (nucleus)")
    min_p: float = option(0.0, "sample from tokens at least this fraction as likely as the most likely one")
    repetition: float = option(1.0, "repetition penalty: above 1, tokens of the text so far become less likely")
    stop: tuple[str, ...] = option((), "end a text before the first of these strings; \\n, \\t and \\\\ are escapes")
    seed: int = option(1, "random seed of the sampling")
    step: int | None = option(None, "step of the checkpoint; default: the newest")
    interactive: bool = option(False, "continue the lines that you type; /help lists the commands")
    batch: int = option(64, "maximum number of texts per batch; does not change the texts")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")
    compile: bool = option(False, "on a GPU, compile the model first: a minute, then several times as fast")

    def check(self) -> None:
        """Refuse impossible options before torch is imported."""
        for name, value in (("samples", self.samples), ("tokens", self.tokens), ("batch", self.batch)):
            if value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}")
        if "" in self.stop:
            raise UserError("--stop is empty; give at least one character")
        batched = self.json or self.prompts or self.samples > 1 or len(self.prompt) > 1 or "-" in self.prompt
        if self.interactive and batched:
            raise UserError("--interactive takes lines as they are typed: leave out --prompts, --samples, --json and -")


def generate(options: GenerateOptions) -> int:
    """Generate text with a trained model."""
    named = options.run is not None
    if not named:
        run, prompt, stop = swallowed(options.prompt, options.stop, options.runs)
        options = replace(options, run=run, prompt=prompt, stop=stop)
    options.check()
    run = options.open()  # a mistyped name is reported before torch is imported
    if run.config.get("data", {}).get("kind") == "pairs":
        raise UserError(f"{run.path} is a translation model: regard translate {run.path}")
    from regard.generate import Sampling, TextGenerator
    from regard.generate.load import find_device, load_model
    from regard.models.base import LanguageModel

    try:
        sampling = Sampling(options.temperature, options.top_k, options.top_p, options.min_p, options.repetition)
    except ValueError as problem:
        raise UserError(f"--{str(problem).replace('_', '-')}") from problem
    device = find_device(options.device)
    texts = [] if options.interactive else gathered(options.prompt, options.prompts)
    model, tokenizer, step, _ = load_model(run, device, options.step)
    if not isinstance(model, LanguageModel):
        raise UserError(f"{run.path} is a {type(model).__name__}, which does not write text; give a language model")
    if not named:
        print(f"written by {run.path}, step {step:,}", file=sys.stderr, flush=True)
    generator = TextGenerator(
        model,
        tokenizer,
        sampling,
        length=options.tokens,
        seed=options.seed,
        stops=tuple(unescaped(text) for text in options.stop),
        batch=options.batch,
        sync_every=32 if options.json and device.type != "cpu" else 1,
        compiled=options.compile,
    )
    if options.interactive:
        return talk(generator, "".join(options.prompt))
    about = {"run": str(run.path), "step": step} if options.json else None
    return write(generator, texts, options.samples, about)


def write(generator: TextGenerator, texts: list[str], samples: int, about: dict | None) -> int:
    """Write on from each text; prints them as they come, or as JSON with what is ``about`` the run."""
    from regard.generate import Prompt

    texts = texts or [beginning(generator)]
    encoded = [tuple(encode(generator, text)) for text in texts]
    longest = max(map(len, encoded))
    context = generator.model.config.context
    if longest > context:
        out = f"the oldest {longest - context:,} of its tokens are left out"
        print(f"a prompt is longer than the {context:,} tokens that the model reads: {out}", file=sys.stderr)
    prompts = [Prompt(ids, sample) for ids in encoded for sample in range(samples)]
    titles = [(text, sample) for text in texts for sample in range(samples)]
    began = time.perf_counter()
    try:
        if about is None:
            show(generator.stream(prompts), titles, samples)
        else:
            rows = generator.texts(prompts)
            seconds = time.perf_counter() - began
            made = [described(*title, row) for title, row in zip(titles, rows, strict=True)]
            throughput = asdict(generator.throughput)
            print(json.dumps({**about, "seconds": seconds, "throughput": throughput, "texts": made}))
    except KeyboardInterrupt:
        print(flush=True)  # what was written stays, on lines of its own
        raise
    finally:
        print(generator.throughput, file=sys.stderr)
    return 0


def described(prompt: str, sample: int, row: GeneratedText) -> dict:
    """A text for a program."""
    return {"prompt": prompt, "sample": sample, "text": row.text, "tokens": row.tokens, "stop": row.stop}


def show(pieces: Iterable[tuple[int, str, GeneratedText]], titles: list[tuple[str, int]], samples: int) -> None:
    """Print texts in their order: the first unfinished one as it grows, those after it when their turn comes."""
    rows: dict[int, GeneratedText] = {}
    turn, shown = 0, 0  # the text being printed, and how many of its pieces are

    def begin() -> None:
        prompt, sample = titles[turn]
        if len(titles) > 1:
            print(f"--- {prompt!r}" + (f" ({sample + 1} of {samples})" if samples > 1 else ""))
        print(prompt, end="", flush=True)

    begin()
    for number, _, row in pieces:
        rows[number] = row
        while turn in rows:
            print("".join(rows[turn].pieces[shown:]), end="", flush=True)
            shown = len(rows[turn].pieces)
            if not rows[turn].done:
                break
            print(flush=True)
            turn, shown = turn + 1, 0
            if turn < len(titles):
                begin()


def talk(generator: TextGenerator, text: str) -> int:
    """The loop of `--interactive`."""
    import contextlib

    from regard.generate.interactive import HELP, InteractiveSession

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (arrow keys and earlier lines)
    person = sys.stdin.isatty() and sys.stdout.isatty()
    if person:
        print(HELP, file=sys.stderr)
    InteractiveSession(generator, sys.stdout, sys.stderr, text).run(lambda: input("> " if person else ""))
    return 0


def swallowed(
    prompt: tuple[str, ...], stop: tuple[str, ...], runs: Path
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """The run that stands after an option of several values and so became one of them: `--prompt TEXT RUN`."""
    if len(prompt) > 1 and is_run(prompt[-1], runs):
        return prompt[-1], prompt[:-1], stop
    if len(stop) > 1 and is_run(stop[-1], runs):
        return stop[-1], prompt, stop[:-1]
    return None, prompt, stop


def unescaped(text: str) -> str:
    r"""A text with the new lines, tabs and backslashes that a shell passes on as two characters.

    >>> unescaped(r"\n--\t\\n") == "\n--\t" + r"\n"
    True
    """
    meant = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
    return re.sub(r"\\[nt\\]", lambda found: meant[found[0]], text)


def encode(generator: TextGenerator, text: str) -> list[int]:
    """The tokens of a prompt."""
    ids = generator.tokenizer.encode(text).tolist()
    if not ids:
        raise UserError("a prompt is empty; give at least one character")
    return ids


def beginning(generator: TextGenerator) -> str:
    """What to go on from when nothing is given: the start of a line."""
    try:
        generator.tokenizer.encode("\n")
    except UserError as problem:
        raise UserError("the model knows no new line, which is the prompt by default; give a --prompt") from problem
    return "\n"


def gathered(prompt: tuple[str, ...], prompts: str | None) -> list[str]:
    """The prompts that were given: those of the command line, then those of the file."""
    if ("-" in prompt and prompts == "-") or prompt.count("-") > 1:
        raise UserError("standard input can be read once only; give - once")
    texts = [standard_input() if text == "-" else text for text in prompt]
    if prompts is not None:
        lines = split(standard_input() if prompts == "-" else contents(Path(prompts)))
        lines = [line for line in lines if line]
        if not lines:
            where = "standard input" if prompts == "-" else prompts
            raise UserError(f"there is no prompt in {where}; write one on each line")
        texts += lines
    return texts
