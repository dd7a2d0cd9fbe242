"""`regard generate`."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions, is_run, naming_options, open_run
from regard.commands.lines import read_lines, standard_input
from regard.config import option
from regard.errors import UserError
from regard.runs.disk import JsonObject
from regard.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from regard.generate import GeneratedText, TextGenerator


@dataclass(frozen=True)
class GenerateOptions(CheckpointOptions):
    """Options of `regard generate`."""

    prompt: tuple[str, ...] = option(
        (),
        "the text to continue, taken literally; default: a new line; several prompts are decoded together; - is "
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
    beams: int = option(1, "beam search with this many beams instead of sampling; --samples then gives the best texts")
    length_penalty: float = option(1.0, "beam search: the log-probability is divided by length to this power")
    stop: tuple[str, ...] = option((), "end a text before the first of these strings; \\n, \\t and \\\\ are escapes")
    seed: int = option(1, "random seed of the sampling")
    interactive: bool = option(False, "continue the lines that you type; /help lists the commands")
    batch: int = option(64, "texts generated at once; the next begins where one is finished; does not change the texts")
    out: Path | None = option(None, "for a run that draws: the PNG file to write; default: picture.png in its folder")
    compile: bool = option(False, "on a GPU, compile the model first: a minute, then several times as fast")

    def check(self) -> None:
        """Refuse impossible options before torch is imported."""
        self.check_at_least_one("samples", "tokens", "batch", "beams")
        if "" in self.stop:
            raise UserError("--stop is empty; give at least one character")
        batched = self.json or self.prompts or self.samples > 1 or len(self.prompt) > 1 or "-" in self.prompt
        if self.interactive and batched:
            raise UserError("--interactive takes lines as they are typed: leave out --prompts, --samples, --json and -")
        if self.beams == 1:
            return
        sampling = ("temperature", "top_k", "top_p", "min_p", "repetition", "seed")
        changed = [name for name in sampling if vars(self)[name] != vars(GenerateOptions())[name]]
        if changed or self.interactive:
            flag = changed[0].replace("_", "-") if changed else "interactive"
            raise UserError(f"--beams searches for the most likely text and does not sample; leave out --{flag}")
        if self.samples > self.beams:
            raise UserError(f"--samples {self.samples} needs as many beams; give --beams {self.samples}")


def generate(options: GenerateOptions) -> int:
    """Generate text with a trained model, or images from captions."""
    named = options.run is not None
    if not named:
        options = replace(options, **run_among_values(options))
    options.check()
    run = open_run(options.run, options.runs)  # a mistyped name is reported before torch is imported
    if run.table("data").get("kind") == "pairs":
        raise UserError(f"{run.path} is a translation model: regard translate {run.path}")
    from regard.models.base import ModelConfig

    if run.load(ModelConfig, "model").reads != "text":
        from regard.commands.draw import draw

        return draw(options, run, read_prompts(options))
    from regard.generate import BeamSearch, Sampling, TextGenerator
    from regard.generate.cuda_graph import graph_refusal
    from regard.models.base import LanguageModel
    from regard.models.device import find_device

    with naming_options():
        sampling = Sampling(options.temperature, options.top_k, options.top_p, options.min_p, options.repetition)
    device = find_device(options.device)  # before standard input is read
    texts = [] if options.interactive else read_prompts(options)
    model, loaded = options.load(run, LanguageModel, ", which generates no text; give a language model")
    step = loaded.step
    if not named:
        print(printable(f"generated by {run.path}, step {step:,}"), file=sys.stderr, flush=True)
    refusal = graph_refusal(model, device, options.tokens)
    if options.compile and refusal:
        print(f"--compile has no effect: {refusal}", file=sys.stderr, flush=True)
    generator = TextGenerator(
        model,
        loaded.tokenizer,
        sampling,
        length=options.tokens,
        seed=options.seed,
        stops=tuple(unescape(text) for text in options.stop),
        batch=options.batch,
        sync_every=32 if options.json and device.type != "cpu" else 1,
        compiled=options.compile,
        search=BeamSearch(options.beams, options.length_penalty) if options.beams > 1 else None,
    )
    if options.interactive:
        return run_session(generator, "".join(options.prompt))
    about = {"run": str(run.path), "step": step, "damaged": run.damaged} if options.json else None
    return generate_texts(generator, texts or [default_prompt(generator)], options.samples, about)


def generate_texts(generator: TextGenerator, texts: list[str], samples: int, about: JsonObject | None) -> int:
    """Continue each text and print it while it is generated; or print all as JSON, after the entries of ``about``."""
    from regard.generate import Prompt

    encoded = [tuple(generator.tokenizer.encode(text).tolist()) for text in texts]
    if not all(encoded):
        raise UserError("a prompt is empty; give at least one character")
    longest, context = max(map(len, encoded)), generator.model.config.context
    if longest > context:
        print(
            f"a prompt is longer than the model's context of {context:,} tokens: its first {longest - context:,} "
            "tokens are left out",
            file=sys.stderr,
        )
    prompts = [Prompt(ids, sample) for ids in encoded for sample in range(samples)]
    titles = [(text, sample) for text in texts for sample in range(samples)]
    began = time.perf_counter()
    try:
        if about is None:
            show(generator.stream(prompts), titles, samples)
        else:
            generated = generator.texts(prompts)
            seconds = time.perf_counter() - began
            records = [
                {"prompt": prompt, "sample": sample, "text": one.text, "tokens": one.tokens, "stop": one.stop}
                for (prompt, sample), one in zip(titles, generated, strict=True)
            ]
            throughput = asdict(generator.throughput)
            print(json.dumps({**about, "seconds": seconds, "throughput": throughput, "texts": records}))
    except KeyboardInterrupt:
        print(flush=True)  # end the line of the text so far
        raise
    finally:
        print(generator.throughput, file=sys.stderr)
    return 0


def show(pieces: Iterable[tuple[int, str, GeneratedText]], titles: list[tuple[str, int]], samples: int) -> None:
    """Print texts in order: the first unfinished one while it is generated, each later one after those before it."""
    texts: dict[int, GeneratedText] = {}
    current, shown = 0, 0  # the text being printed, and how many of its pieces have been
    terminal = sys.stdout.isatty()  # which would obey control characters; a file gets the text as it is

    def begin() -> None:
        prompt, sample = titles[current]
        if len(titles) > 1:
            print(f"--- {prompt!r}" + (f" ({sample + 1} of {samples})" if samples > 1 else ""))
        print(prompt, end="", flush=True)

    begin()
    for number, _, text in pieces:
        texts[number] = text
        while current in texts:
            new = "".join(texts[current].pieces[shown:])
            print(printable(new) if terminal else new, end="", flush=True)
            shown = len(texts[current].pieces)
            if not texts[current].done:
                break
            print(flush=True)
            current, shown = current + 1, 0
            if current < len(titles):
                begin()


def run_session(generator: TextGenerator, text: str) -> int:
    """Run `--interactive`, beginning with a text."""
    import contextlib

    from regard.generate.interactive import HELP, InteractiveSession

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (editing and history)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if terminal:
        print(HELP, file=sys.stderr)
    InteractiveSession(generator, sys.stdout, sys.stderr, text).run(lambda: input("> " if terminal else ""))
    return 0


def run_among_values(options: GenerateOptions) -> JsonObject:
    """The run that follows an option of several values and was parsed as one of them: `--prompt TEXT RUN`."""
    for name in ("prompt", "stop"):
        values = vars(options)[name]
        if len(values) > 1 and is_run(values[-1], options.runs):
            return {"run": values[-1], name: values[:-1]}
    return {}


def unescape(text: str) -> str:
    r"""Replace the escapes \n, \t and \\ by the characters that they stand for.

    >>> unescape(r"\n--\t\\n") == "\n--\t" + r"\n"
    True
    """
    escapes = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
    return re.sub(r"\\[nt\\]", lambda match: escapes[match[0]], text)


def default_prompt(generator: TextGenerator) -> str:
    """A newline, if the vocabulary has one."""
    try:
        generator.tokenizer.encode("\n")
    except UserError as problem:
        raise UserError("the vocabulary has no new line, which is the default prompt; give a --prompt") from problem
    return "\n"


def read_prompts(options: GenerateOptions) -> list[str]:
    """The prompts of the command line, then those of the file."""
    file = options.prompts
    if ("-" in options.prompt and file == "-") or options.prompt.count("-") > 1:
        raise UserError("standard input can be read once only; give - once")
    texts = [standard_input() if text == "-" else text for text in options.prompt]
    if file is None:
        return texts
    lines = [line for line in read_lines(file) if line]
    if not lines:
        raise UserError(f"there is no prompt in {'standard input' if file == '-' else file}; write one on each line")
    return texts + lines
