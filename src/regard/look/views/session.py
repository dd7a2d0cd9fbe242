"""A model and its tokenizer with everything that the page and `regard look` show, as plain numbers.

Methods return JSON-compatible dictionaries (numbers may be NaN) and NumPy arrays, and raise a `UserError` for wrong
requests. Nothing here changes the model: hooks are removed and modes and random states restored after every call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch.nn import functional as F

from regard.data.base import Specials
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.generate import OutputConstraints, Sampling, decode_seq2seq, sampling_decoder
from regard.generate.cached import CachedLanguageModel, CachedSeq2Seq
from regard.generate.decoder import Decoder, DecodingStep
from regard.generate.load import load_model
from regard.generate.sampler import Sampler
from regard.generate.translation import load_translation_model, source_streams
from regard.look.capture.observe import evaluation_mode, observe
from regard.look.interventions.ablate import ablate, head_effects
from regard.look.interventions.residual import contributions, lens, patch
from regard.look.statistics.measures import on_random_text, random_text
from regard.look.views.generation import beam_tree, distribution, nbytes
from regard.look.views.reading import NO_TARGET, Reading, mean
from regard.look.views.trace import Trace
from regard.models.base import Encoder, LanguageModel, Model, Seq2SeqModel
from regard.models.device import parameter_device
from regard.runs import Run
from regard.runs.disk import JsonObject

LONGEST = 8192  # tokens of a text
MAX_TOKENS = 200  # generated per call
MAX_POSITION = 2**16  # in a random stream
MAX_BEAMS, MAX_LENGTH = 16, 64  # of a tree


def capabilities(model: Model, translates: bool) -> JsonObject:
    """Which views a model has, and why it lacks the others."""
    attend, probe, steps = bool(model.mechanisms()), bool(model.residual_blocks()), _decodable(model)
    missing = [] if attend else ["this model has no attention"]
    missing += [] if probe else ["this model has no blocks with a residual stream, so there is no lens and no patching"]
    missing += [] if steps else ["this model cannot decode token by token, because one of its parts needs whole texts"]
    views = {"attention": attend, "sampling": steps, "beam_search": steps, "probes": probe}
    return {**views, "translation": translates, "reason": "; ".join(missing)}


def _decodable(model: Model) -> bool:
    return isinstance(model, LanguageModel | Seq2SeqModel) and model.decodable


@dataclass(frozen=True)
class Session:
    """A loaded model with its tokenizer, which answers the requests of the views one at a time."""

    model: Model
    tokenizer: Tokenizer
    specials: Specials | None = None  # None: a language model; otherwise a sequence-to-sequence model
    step: int | None = None  # of the checkpoint
    lower: bool = False  # translation: the source is lowercased

    @classmethod
    def load(cls, run: Run, device: torch.device | str = "cpu", step: int | None = None) -> Self:
        """The newest complete checkpoint of a run, or that of ``step``."""
        if run.table("data").get("kind") == "pairs":
            loaded = load_translation_model(run, device, step)
            return cls(loaded.model, loaded.tokenizer, loaded.specials, loaded.step, loaded.lower)
        model, tokenizer, reached, _ = load_model(run, device, step)
        return cls(model.text_reader, tokenizer, None, reached)

    @property
    def context(self) -> int:
        """The length of the training texts."""
        return self.model.config.context

    def read(self, text: str, target: str | None = None) -> Reading:
        """The tokens and targets of a text, or of a source and its translation."""
        device, ids = parameter_device(self.model), self._encode(text, "the text")
        if self.specials is None:
            if target is not None:
                raise UserError("this model reads one text and no translation; leave the second text out")
            tokens = torch.tensor(ids, device=device)
            if isinstance(self.model, Encoder):
                targets = tokens if self.model.predicts_tokens else torch.full_like(tokens, NO_TARGET)
                return Reading(tokens[None], targets)
            return Reading(tokens[None], F.pad(tokens[1:], (0, 1), value=NO_TARGET))
        if target is None:
            raise UserError("this model reads a source and its translation; give the translation as the second text")
        begin, end, translation = self.specials.begin, self.specials.end, self._encode(target, "the translation")
        return Reading(
            torch.tensor([[begin, *translation]], device=device),
            torch.tensor([*translation, end], device=device),
            torch.tensor([[*ids, end]], device=device),
        )

    def _encode(self, text: str, what: str) -> list[int]:
        if not text:
            raise UserError(f"{what} is empty; give at least one character")
        if len(text) > 64 * LONGEST:  # refused before tokenization: no token is that long on average
            raise UserError(f"{what} has {len(text):,} characters, more than {LONGEST:,} tokens; shorten it")
        ids = self.tokenizer.encode(text.lower() if self.lower else text).tolist()
        if len(ids) > LONGEST:
            raise UserError(f"{what} has {len(ids):,} tokens, and the limit is {LONGEST:,}; shorten it")
        return ids

    def texts(self, tokens: Sequence[int]) -> list[str]:
        r"""Each token as text; an incomplete UTF-8 character as ``\xe2``, special tokens in angle brackets."""
        special = {} if self.specials is None else self.specials._asdict()
        marks = {token: f"<{name}>" for name, token in special.items()}

        def text(token: int) -> str:
            known = token < self.tokenizer.size
            return self.tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace") if known else ""

        return [marks.get(token) or text(token) for token in tokens]

    def trace(self, text: str, target: str | None = None) -> Trace:
        """Run the model on a text once and keep the inputs of its attentions."""
        reading = self.read(text, target)
        attentions, features = observe(self.model, lambda: reading.features(self.model), values=True)
        if not attentions:
            raise UserError("this model has no attention to look at; its loss and samples are under Runs")
        with evaluation_mode(self.model):
            loss = mean(reading.losses(self.model, features))
        inputs, target_tokens, predicted = self.texts(reading.inputs[0].tolist()), None, None
        if reading.source is not None:
            inputs, target_tokens = self.texts(reading.source[0].tolist()), inputs
        if reading.targets[-1] != NO_TARGET:
            predicted = self.texts(reading.targets.tolist())
        effects = list if loss is None else lambda: head_effects(self.model, reading, attentions)
        return Trace(inputs, target_tokens, predicted, attentions, loss, self._random_scores, effects)

    def _random_scores(self) -> list[list[dict[str, float]]]:
        """The role scores from random texts by attention and head; [] for sequence-to-sequence models."""
        text = random_text(self.tokenizer.size, self.context)
        if text is None or not isinstance(self.model, LanguageModel):
            return []
        return on_random_text(self.model, text.to(parameter_device(self.model)))

    def next(
        self,
        text: str,
        sampling: Sampling,
        *,
        count: int = 1,
        seed: int = 1,
        position: int = 0,
        target: str | None = None,
    ) -> JsonObject:
        """The next-token distribution, and ``count`` sampled tokens after ``position`` earlier ones of this seed.

        The p-th number of the seed's stream decides the p-th token: text that is sampled here step by step is the text
        that `regard generate` samples at once. A translation continues ``target``, which may be empty.
        """
        if not 1 <= count <= MAX_TOKENS:
            raise UserError(f"1 to {MAX_TOKENS} tokens are drawn at once, not {count}")
        if not 0 <= position < MAX_POSITION:
            raise UserError(f"the position in a seed's draws is 0 to {MAX_POSITION - 1}, not {position}")
        steps: list[DecodingStep] = []
        with evaluation_mode(self.model):
            cached, tokens, count, streams, constraints = self._continued(text, target, count)
            sampler = Sampler(sampling, streams, constraints, seed=seed, offset=position, seen=[tokens])
            decoder, used = Decoder(cached, sampler, count, [steps.append]), min(len(tokens), self.context)
            state = cached.state if isinstance(cached, CachedSeq2Seq) else self._language_model.start(1, used)
            # The state of a recurrent model does not grow: it has no capacity.
            capacity = None if state.capacity is None else self.context
            cache = {"bytes": nbytes(state), "tokens": used, "capacity": capacity}
            sampled = [int(token) for token in decoder]
            likeliest = distribution(steps[0].logits, sampling, tokens, self.texts)
        written = [{"token": t, "text": text} for t, text in zip(sampled, self.texts(sampled), strict=True)]
        return {
            "tokens": self.texts(tokens),
            **likeliest,
            "cache": cache,
            "sampled": written[0],
            "continuation": written,
        }

    def _continued(
        self, text: str, target: str | None, count: int
    ) -> tuple[CachedLanguageModel | CachedSeq2Seq, list[int], int, list[int], OutputConstraints | None]:
        """A model that continues a text, or the beginning of a translation, and its tokens.

        Then how many tokens may follow, the random stream that draws them, and the constraints of a translation.
        """
        if self.specials is None:
            tokens = self.read(text, target).inputs[0].tolist()
            return CachedLanguageModel(self._language_model, [tokens], count, graphs=False), tokens, count, [0], None
        reading = self.read(text, target or " ")
        tokens = reading.inputs[0].tolist() if target else [self.specials.begin]
        room = self.context - len(tokens) + 1
        if room < 1:
            most = f"a translation has at most {self.context} tokens in this model"
            raise UserError(f"{most}, and {len(tokens) - 1} are given")
        count, streams = min(count, room), source_streams(*reading.source_batch, 1)
        cached = CachedSeq2Seq(self._seq2seq, *reading.source_batch, tokens, self.context)
        return cached, tokens, count, streams, OutputConstraints.of(self.specials, 0, count)

    def beam(self, text: str, beams: int = 3, length: int = 12) -> JsonObject:
        """Beam search as a tree: of continuations, or of translations as in `regard translate`."""
        if not 1 <= beams <= MAX_BEAMS:
            raise UserError(f"a tree is drawn for 1 to {MAX_BEAMS} beams, not {beams}")
        if not 1 <= length <= MAX_LENGTH:
            raise UserError(f"a tree is drawn for 1 to {MAX_LENGTH} tokens, not {length}")
        with evaluation_mode(self.model):
            if self.specials is None:
                prompt = self.read(text).inputs[0, -max(1, self.context - length) :].tolist()
                cached = CachedLanguageModel(self._language_model, [prompt], length, graphs=False)
                return {"nodes": beam_tree(cached, OutputConstraints(length), beams, self.texts)}
            constraints, batch = self._constraints(length), self.read(text, " ").source_batch
            cached = CachedSeq2Seq(self._seq2seq, *batch, constraints.prefix, constraints.max_length)
            return {"nodes": beam_tree(cached, constraints, beams, self.texts)}

    def lens(self, text: str, target: str | None = None) -> JsonObject:
        """The logit lens: the prediction of each layer if it were the last."""
        return lens(self.model, self.read(text, target), self.texts)

    def residual(self, text: str, target: str | None = None) -> JsonObject:
        """The size of the residual stream, and what each attention and feed-forward network adds to it."""
        return contributions(self.model, self.read(text, target), self.texts)

    def ablate(
        self, text: str, heads: Sequence[tuple[int, int]], *, count: int = 40, seed: int = 1, target: str | None = None
    ) -> JsonObject:
        """Loss and generated text without these (attention, head)."""
        if not 0 <= count <= MAX_TOKENS:
            raise UserError(f"0 to {MAX_TOKENS} tokens are generated, not {count}")
        reading = self.read(text, target)
        return ablate(self.model, reading, heads, lambda: self._generate(reading, count, seed))

    def patch(self, text: str, source: str, layer: int, positions: Sequence[int] | None = None) -> JsonObject:
        """Loss and next token with the residual stream of ``source`` inserted at a layer."""
        if self.specials is not None:
            raise UserError("patching needs a language model, and this model translates")
        return patch(self.model, self.read(text), self.read(source), layer, positions, self.texts)

    def _generate(self, reading: Reading, count: int, seed: int) -> str | None:
        """A continuation as by `regard generate`, or a greedy translation; None if the model cannot decode."""
        if not count or not _decodable(self.model):
            return None
        if self.specials is None:
            prompt = reading.inputs[0].tolist()
            decoder = sampling_decoder(self._language_model, [prompt], count, Sampling(), seed=seed, graphs=False)
            return self.tokenizer.decode([int(token) for token in decoder])
        greedy, constraints = Sampling(temperature=0.0), self._constraints(count)
        best = decode_seq2seq(self._seq2seq, *reading.source_batch, constraints, greedy)[0][0]
        return self.tokenizer.decode(best.tokens)

    @property
    def _language_model(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model

    @property
    def _seq2seq(self) -> Seq2SeqModel:
        assert isinstance(self.model, Seq2SeqModel)
        return self.model

    def _constraints(self, length: int) -> OutputConstraints:
        assert self.specials is not None  # translations only
        return OutputConstraints.of(self.specials, 0, min(length, self.context))
