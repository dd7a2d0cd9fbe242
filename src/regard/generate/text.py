"""Text generation: prompts to texts, streamed, each up to its stop string or its last token."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from regard.data import Tokenizer
from regard.errors import UserError
from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.cached import CachedLanguageModel
from regard.generate.constraints import OutputConstraints, StopCondition, StopStrings
from regard.generate.decoder import Decoder
from regard.generate.sampler import Sampler
from regard.generate.sampling import Sampling
from regard.models.base import LanguageModel
from regard.models.device import parameter_device


@dataclass(frozen=True)
class Prompt:
    """The tokens to continue, and the number of the sample: its random stream, or its rank in beam search."""

    tokens: tuple[int, ...]
    sample: int = 0


@dataclass
class Throughput:
    """Tokens and seconds of prefill and of decoding.

    Prefill ends with the first token of each text in the first batch, and before a later prompt's last token.
    """

    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    first_tokens: int = 0  # those of the generated tokens that came with prefill
    decode_seconds: float = 0.0

    def __str__(self) -> str:
        def rate(tokens: int, timed: int, seconds: float) -> str:
            speed = f" at {timed / seconds:,.0f}/s" if timed and seconds else ""
            return f"{tokens:,} token{'' if tokens == 1 else 's'}{speed}"

        decoded = self.generated_tokens - self.first_tokens
        return (
            f"prompt: {rate(self.prompt_tokens, self.prompt_tokens, self.prefill_seconds)}; "
            f"generated: {rate(self.generated_tokens, decoded, self.decode_seconds)}"
        )


class GeneratedText:
    """The text generated so far after one prompt."""

    def __init__(self, generator: "TextGenerator"):
        self.pieces: list[str] = []
        self.tokens = 0
        self.stop: str | None = None  # the stop string that ended it
        self.done = False
        self._throughput = generator.throughput
        self._stream, self._stops = generator.tokenizer.stream(), StopStrings(generator.stops)

    @property
    def text(self) -> str:
        """The whole text, without the stop string."""
        return "".join(self.pieces)

    def feed(self, tokens: list[int], last: bool) -> str:
        """Append tokens up to a stop string; return the new text."""
        new = []
        for token in tokens:
            self.tokens += 1
            self._throughput.generated_tokens += 1
            new.append(self._stops.feed(self._stream.feed([token])))
            if self._stops.found is not None:
                break
        else:
            if last:
                new += [self._stops.feed(self._stream.end()), self._stops.end()]
        self.stop = self._stops.found
        self.done = last or self.stop is not None
        text = "".join(new)
        if text:
            self.pieces.append(text)
        return text


@dataclass(frozen=True)
class TextGenerator:
    """Generates texts with one model and one set of options; ``throughput`` adds up over all of them."""

    model: LanguageModel
    tokenizer: Tokenizer
    sampling: Sampling
    length: int = 500  # tokens per text
    seed: int = 1
    stops: tuple[str, ...] = ()
    batch: int = 64
    sync_every: int = 1  # tokens between copies to the host: 1 streams each token, more keeps a GPU busy
    compiled: bool = False  # compile the step first: on a GPU a minute, then several times faster
    search: BeamSearch | None = None  # search with beams instead of sampling
    throughput: Throughput = field(default_factory=Throughput)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"the number of tokens must be at least 1, not {self.length}")
        if self.batch < 1:
            raise UserError(f"the batch must be at least 1, not {self.batch}")
        if not all(self.stops):
            raise UserError("a stop string is empty; give at least one character")

    def stream(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str, GeneratedText]]:
        """Yield (number of the prompt, new text, its `GeneratedText`); at the end of each text once with ``done``.

        At most ``batch`` texts are generated at a time; the batch does not change any text. A sampled text takes the
        place of a finished one at once; beam search finishes a batch before the next.
        """
        generate, size = (self._sample, len(prompts)) if self.search is None else (self._search, self.batch)
        for first in range(0, len(prompts), size or 1):
            batch = prompts[first : first + size]
            self.throughput.prompt_tokens += sum(
                min(len(tokens), self.model.config.context) for tokens in {prompt.tokens for prompt in batch}
            )
            for number, text, row in generate(batch):
                yield first + number, text, row

    def texts(self, prompts: Sequence[Prompt]) -> list[GeneratedText]:
        """The finished texts."""
        texts = {number: text for number, _, text in self.stream(prompts)}
        return [texts[number] for number in range(len(prompts))]

    def _sample(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str, GeneratedText]]:
        began = time.perf_counter()
        tokens = [prompt.tokens for prompt in prompts]
        sampler = Sampler(self.sampling, [prompt.sample for prompt in prompts], seed=self.seed, seen=tokens)
        cached = CachedLanguageModel(self.model, tokens, self.length, batch=self.batch, compiled=self.compiled)
        decoder = Decoder(cached, sampler, self.length)
        texts: dict[int, GeneratedText] = {}  # those in the batch
        while not decoder.done:
            first = decoder.position == 0
            texts = {number: texts.get(number) or GeneratedText(self) for number in decoder.prompts}
            left = min(self.length - text.tokens for text in texts.values() if not text.done)
            steps = 1 if first else min(self.sync_every, left)
            block = torch.stack([decoder.next() for _ in range(steps)], 1).tolist()
            self._time(began, first, len(block))
            for number, new_tokens in zip(decoder.prompts, block, strict=True):
                text = texts[number]
                if not text.done and (
                    (new := text.feed(new_tokens, last=text.tokens + steps == self.length)) or text.done
                ):
                    yield number, new, text
            began = time.perf_counter()
            if decoder.retain([not texts[number].done for number in decoder.prompts]):
                if (device := parameter_device(self.model)).type == "cuda":
                    torch.cuda.synchronize(device)  # so that prefill is timed apart from decoding
                self._time(began, True, 0)
                began = time.perf_counter()

    def _search(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str, GeneratedText]]:
        """Each prompt's hypothesis of the rank that its ``sample`` names; equal prompts are searched once."""
        assert self.search is not None
        began = time.perf_counter()
        unique = list(dict.fromkeys(prompt.tokens for prompt in prompts))
        stop = StopCondition(self.tokenizer, self.stops) if self.stops else None
        nbest = 1 + max(prompt.sample for prompt in prompts)
        searcher = BeamSearcher(self.search, OutputConstraints(self.length, stop=stop), nbest)
        cached = CachedLanguageModel(self.model, unique, self.length, compiled=self.compiled)
        decoder = Decoder(cached, searcher, self.length)
        for _ in decoder:
            self._time(began, decoder.position == 1, len(unique))
            began = time.perf_counter()
        found = dict(zip(unique, searcher.hypotheses(), strict=True))
        for number, prompt in enumerate(prompts):
            ranked = found[prompt.tokens]
            if prompt.sample >= len(ranked):
                raise UserError(
                    f"beam search found {len(ranked)} texts, not {nbest}; generate more tokens or fewer texts"
                )
            text = GeneratedText(self)
            yield number, text.feed(ranked[prompt.sample].tokens, last=True), text

    def _time(self, began: float, prefill: bool, rows: int) -> None:
        seconds = time.perf_counter() - began
        if prefill:
            self.throughput.prefill_seconds += seconds
            self.throughput.first_tokens += rows
        else:
            self.throughput.decode_seconds += seconds
