"""`regard generate`."""

from __future__ import annotations

import json as jsonlib
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, RunName, is_run, open_run
from regard.commands.lines import contents, split, standard_input
from regard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from regard.generate import GeneratedText, TextGenerator


def generate(
    run: RunName = None,
    /,
    *,
    prompt: tuple[str, ...] = (),
    prompts: str | None = None,
    samples: int = 1,
    tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition: float = 1.0,
    stop: tuple[str, ...] = (),
    seed: int = 1,
    step: int | None = None,
    interactive: bool = False,
    batch: int = 64,
    device: str = "auto",
    compile: bool = False,
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """Let a trained model write.

    Args:
        run: The run's folder or name; by default the newest run.
        prompt: What to go on from, by default a new line; several prompts are written on at once; - is all of
            standard input. It is taken as it is: for new lines within it, let the shell write them, $'two\\nlines'.
        prompts: A file with a prompt on each line; - reads them from standard input.
        samples: How many texts to write for each prompt.
        tokens: How many tokens to write.
        temperature: Lower is safer, higher is wilder; 0 always takes the likeliest token.
        top_k: Choose among the k likeliest tokens only.
        top_p: Choose among the likeliest tokens that together have this probability.
        min_p: Choose among tokens at least this many times as likely as the likeliest.
        repetition: Above 1 tokens of the text so far are made less likely.
        stop: End a text before the first of these strings; \\n is a new line, \\t a tab, and \\\\ a backslash.
        seed: Decides the draws.
        step: Write with the checkpoint of this step; by default the newest.
        interactive: Type, and it goes on; /help lists more.
        batch: How many texts to write at once; changes no text.
        device: Where to run: auto, cpu, cuda, mps.
        compile: On a GPU, compile the model first: it takes a minute, and then it writes several times as fast.
        runs: The folder that holds runs.
        json: Print the texts as JSON.
    """
    for name, value in (("samples", samples), ("tokens", tokens), ("batch", batch)):
        if value < 1:
            raise UserError(f"--{name} must be at least 1, not {value}")
    named = run is not None
    if run is None:
        run, prompt, stop = swallowed(prompt, stop, runs)
    stops = tuple(unescaped(text) for text in stop)
    if "" in stop:
        raise UserError("--stop is empty; give at least one character")
    if interactive and (json or prompts or samples > 1 or len(prompt) > 1 or "-" in prompt):
        raise UserError("--interactive takes lines as they are typed: leave out --prompts, --samples, --json and -")

    found = open_run(run, runs)  # a mistyped name is answered before torch is imported
    if found.config.get("data", {}).get("kind") == "pairs":
        raise UserError(f"{found.path} translates and does not go on with a text: regard translate {found.path}")
    from regard.generate import Sampling, TextGenerator
    from regard.generate.load import find_device, load_model
    from regard.models.base import LanguageModel

    try:
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition)
    except ValueError as problem:
        raise UserError(f"--{str(problem).replace('_', '-')}") from problem
    place = find_device(device)
    texts = [] if interactive else gathered(prompt, prompts)
    model, tokenizer, reached, _ = load_model(found, place, step)
    if not isinstance(model, LanguageModel):
        raise UserError(f"{found.path} is a {type(model).__name__}, which does not write text; give a language model")
    if not named:
        print(f"written by {found.path}, step {reached:,}", file=sys.stderr, flush=True)
    generator = TextGenerator(
        model,
        tokenizer,
        sampling,
        length=tokens,
        seed=seed,
        stops=stops,
        batch=batch,
        sync_every=32 if json and place.type != "cpu" else 1,
        compiled=compile,
    )
    if interactive:
        return talk(generator, "".join(prompt))
    about = {"run": str(found.path), "step": reached} if json else None
    return write(generator, texts, samples, about)


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
            print(jsonlib.dumps({**about, "seconds": seconds, "throughput": throughput, "texts": made}))
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
