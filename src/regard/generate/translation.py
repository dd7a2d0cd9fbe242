"""Sequence-to-sequence decoding, and translation of lines: encode them, decode batches of similar lengths."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data import Bytes, Characters, DataConfig, ImportedConfig, PairData, PairsConfig, Specials, Tokenizer
from regard.errors import UserError
from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.cached import CachedSeq2Seq
from regard.generate.constraints import Hypothesis, OutputConstraints
from regard.generate.decoder import Decoder
from regard.generate.load import LoadedModel, load_model
from regard.generate.sampler import Sampler
from regard.generate.sampling import Sampling
from regard.models.base import Seq2SeqModel
from regard.models.device import parameter_device
from regard.runs import Run

AHEAD = 16  # batches whose lines are sorted by length together; the output keeps the order of the input


class SourceLine(NamedTuple):
    """A line to translate, as the model sees it."""

    text: str
    tokens: list[int]  # with the end token; only that for an empty line
    truncated: int  # how many tokens beyond the model's context were dropped
    unknown: tuple[str, ...]  # words spelled byte by byte, or characters that the tokenizer lacks

    @property
    def empty(self) -> bool:
        """Whether there is nothing to translate."""
        return len(self.tokens) == 1


class LineTranslation(NamedTuple):
    """One translation of a line."""

    text: str  # without line breaks
    hypothesis: Hypothesis


class TranslatedLine(NamedTuple):
    """A line with its translations, best first; none for an empty line."""

    line: SourceLine
    translations: list[LineTranslation]

    @property
    def text(self) -> str:
        """The best translation; empty for an empty line."""
        return self.translations[0].text if self.translations else ""


@dataclass(frozen=True)
class Translator:
    """Translates with one model and one set of options."""

    model: Seq2SeqModel
    tokenizer: Tokenizer
    specials: Specials
    lower: bool = False  # lower-case the source
    strategy: BeamSearch | Sampling = field(default_factory=BeamSearch)
    nbest: int = 1
    max_length: int | None = None  # None: the model's context
    seed: int = 1
    batch: int = 64

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"the batch must be at least 1, not {self.batch}")
        if self.nbest < 1:
            raise UserError(f"the number of translations must be at least 1, not {self.nbest}")
        if isinstance(self.strategy, BeamSearch) and self.nbest > self.strategy.beams:
            raise UserError(
                f"{self.nbest} translations need as many beams, and there are {self.strategy.beams}; use more"
            )
        if self.max_length is not None and not 1 <= self.max_length <= self.context:
            raise UserError(f"a translation has 1 to {self.context} tokens in this model, not {self.max_length}")

    @property
    def context(self) -> int:
        """The most tokens of a source or a translation."""
        return self.model.config.context

    def encode(self, text: str) -> SourceLine:
        """A line as the model sees it."""
        text = text.strip()
        seen = text.lower() if self.lower else text
        try:
            ids, left_out = self.tokenizer.encode(seen).tolist(), ()
        except UserError:  # the tokenizer lacks some of the characters
            ids, left_out = self._encode_known(seen)
        ids = ids[:-1] if ids and ids[-1] == self.specials.end else ids  # an imported tokenizer adds it
        room = self.context - 1
        return SourceLine(
            text, [*ids[:room], self.specials.end], max(0, len(ids) - room), left_out or self._unknown(seen)
        )

    def translate(
        self, lines: Sequence[str], decoded: Callable[[int], object] = lambda count: None
    ) -> Iterator[TranslatedLine]:
        """Each line with its translations, in order; the batches do not change any of them.

        ``decoded`` is called after each batch with the number of lines so far, many of which are not in turn yet.
        """
        for first in range(0, len(lines), AHEAD * self.batch):
            encoded = [self.encode(text) for text in lines[first : first + AHEAD * self.batch]]
            filled = (i for i, line in enumerate(encoded) if not line.empty)
            order = sorted(filled, key=lambda i: len(encoded[i].tokens))
            translations: dict[int, list[LineTranslation]] = {}
            for start in range(0, len(order), self.batch):
                batch = order[start : start + self.batch]
                for number, found in zip(batch, self._decode([encoded[i].tokens for i in batch]), strict=True):
                    texts = (" ".join(self._decode_known(one.tokens).split()) for one in found)
                    translations[number] = list(map(LineTranslation, texts, found))
                decoded(first + len(translations))
            for number, line in enumerate(encoded):
                yield TranslatedLine(line, translations.get(number, []))

    def _decode(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        longest = max(map(len, sources))
        rows = [ids + [self.specials.pad] * (longest - len(ids)) for ids in sources]
        source = torch.tensor(rows, device=parameter_device(self.model))
        batch = (source, source.new_tensor([len(ids) for ids in sources]))
        constraints = OutputConstraints.of(self.specials, 0, self.max_length or self.context)
        return decode_seq2seq(self.model, *batch, constraints, self.strategy, self.nbest, self.seed)

    def _decode_known(self, tokens: list[int]) -> str:
        """The text of tokens; the vocabulary of an imported model may be larger than that of its tokenizer."""
        return self.tokenizer.decode([token for token in tokens if token < self.tokenizer.size])

    def _unknown(self, text: str) -> tuple[str, ...]:
        """Words with letters that are tokenized into single bytes."""
        if isinstance(self.tokenizer, Bytes | Characters):
            return ()  # every token is that short
        widths = self.tokenizer.widths

        def in_bytes(word: str) -> bool:
            ids = self.tokenizer.encode(f" {word}")
            return len(ids) > 2 and bool((widths[ids] == 1).all())

        words = dict.fromkeys(word.strip(".,;:!?\"'()[]{}") for word in text.split())
        return tuple(word for word in words if any(map(str.isalpha, word)) and in_bytes(word))

    def _encode_known(self, text: str) -> tuple[list[int], tuple[str, ...]]:
        """The tokens of the characters that the tokenizer has, and the characters that it lacks."""
        ids, left_out = [], {}
        for character in text:
            try:
                ids += self.tokenizer.encode(character).tolist()
            except UserError:
                left_out[character] = None
        return ids, tuple(left_out)


def decode_seq2seq(
    model: Seq2SeqModel,
    source: Tensor,
    source_lengths: Tensor,
    constraints: OutputConstraints,
    options: BeamSearch | Sampling,
    count: int = 1,
    seed: int = 1,
) -> list[list[Hypothesis]]:
    """For each source [B, S] the ``count`` best hypotheses of beam search, or the different ones of ``count`` samples.

    The random numbers of a source follow from the seed, its own tokens and the number of the sample, and so do not
    depend on the rest of the batch.
    """
    if isinstance(options, BeamSearch):
        strategy = BeamSearcher(options, constraints, count)
    else:
        streams = [0] * len(source) * count if options.greedy else source_streams(source, source_lengths, count)
        strategy = Sampler(options, streams, constraints, samples=count, seed=seed)
    capacity = constraints.max_length + len(constraints.prefix) - 1
    cached = CachedSeq2Seq(model, source, source_lengths, constraints.prefix, capacity)
    for _ in Decoder(cached, strategy, constraints.max_length):
        pass
    return strategy.hypotheses()


def source_streams(source: Tensor, lengths: Tensor, samples: int) -> list[int]:
    """The random stream of each row: a hash of its source's tokens, plus the number of the sample."""
    streams = []
    for row, length in zip(source.tolist(), lengths.tolist(), strict=True):
        digest = hashlib.blake2b(repr(row[:length]).encode(), digest_size=8).digest()
        streams += [(int.from_bytes(digest, "big") + sample) % 2**64 for sample in range(samples)]
    return streams


class TranslationModel(NamedTuple):
    """The model of a run that translates, with what a `Translator` needs."""

    model: Seq2SeqModel
    tokenizer: Tokenizer
    specials: Specials
    config: PairsConfig | ImportedConfig
    step: int
    data_sha256: str | None

    def translator(self, **options: Any) -> Translator:
        """A translator with these options of `Translator`."""
        return Translator(self.model, self.tokenizer, self.specials, lower=self.lower, **options)

    @property
    def lower(self) -> bool:
        """Whether sources are lower-cased."""
        return isinstance(self.config, PairsConfig) and self.config.lower

    def data(self) -> PairData:
        """The pairs that the run was trained on; a UserError if the files have changed."""
        data = self.config.build(self.model.config.context)
        assert isinstance(data, PairData)  # an imported run has none and says so
        LoadedModel(self.model, self.tokenizer, self.step, self.data_sha256).check_data(data)
        return data


def load_translation_model(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> TranslationModel:
    """The model of the checkpoint at ``step``, or of the newest one, of a run that translates."""
    kind = run.table("data").get("kind")
    config = run.load(DataConfig, "data") if kind in ("pairs", "imported") else None
    specials = config.specials if isinstance(config, ImportedConfig) else None
    if not isinstance(config, PairsConfig | ImportedConfig) or (specials is None and kind == "imported"):
        raise UserError(
            f"the run {run.path} was trained on {kind or 'text'} and does not translate; `regard generate` generates "
            "text with it; name a run that translates: regard translate RUN TEXT (recipes for one: `regard recipes`)"
        )
    model, tokenizer, reached, sha256 = load_model(run, device, step)
    assert isinstance(model, Seq2SeqModel)
    if not model.source_vocabulary:
        raise UserError(f"the model of {run.path} reads sound, not text; use it with `regard transcribe`")
    return TranslationModel(model, tokenizer, specials or Specials.after(tokenizer.size), config, reached, sha256)
