"""A model and its tokenizer with everything that the page and `regard look` show, as plain numbers.

Methods return JSON-compatible dictionaries (numbers may be NaN) and NumPy arrays, and raise a `UserError` for wrong
requests. Nothing here changes the model: hooks are removed and modes and random states restored after every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate import OutputConstraints, Sampling, decode_seq2seq, sampling_decoder
from regard.look.capture.tensor_spill import TensorSpill
from regard.look.capture.trace import evaluation_mode, observe
from regard.look.interventions.ablate import ablate
from regard.look.interventions.lens import lens
from regard.look.interventions.patch import patch
from regard.look.statistics.roles import on_random_text, random_text
from regard.look.views.reading import JsonObject, Reading, mean, read, token_texts
from regard.look.views.stepping import MAX_TOKENS, Draw, continue_text, continue_translation
from regard.look.views.trace_view import Trace
from regard.look.views.tree import continuation_tree, translation_tree
from regard.models.base import LanguageModel, Model, Seq2SeqModel, parameter_device

if TYPE_CHECKING:
    from regard.data.base import Specials
    from regard.data.tokenizers import Tokenizer
    from regard.runs import Run

__all__ = ["Session", "Trace"]


@dataclass(frozen=True)
class Session:
    """One trained model."""

    model: Model
    tokenizer: Tokenizer
    specials: Specials | None = None  # None: a language model; otherwise a sequence-to-sequence model
    step: int | None = None  # of the checkpoint
    lower: bool = False  # translation: the source is lowercased

    @classmethod
    def load(cls, run: Run, device: torch.device | str = "cpu", step: int | None = None) -> Session:
        """The newest complete checkpoint of a run, or that of ``step``."""
        if run.config.get("data", {}).get("kind") == "pairs":
            from regard.generate.translation import load_translation_model

            loaded = load_translation_model(run, device, step)
            return cls(loaded.model, loaded.tokenizer, loaded.specials, loaded.step, loaded.config.lower)
        from regard.generate.load import load_model

        model, tokenizer, reached, _ = load_model(run, device, step)
        return cls(model, tokenizer, None, reached)

    @property
    def context(self) -> int:
        """The length of the training texts."""
        return self.model.config.context

    @property
    def device(self) -> torch.device:
        return parameter_device(self.model)

    @property
    def pair(self) -> bool:
        """Whether the model reads a source and its translation."""
        return self.specials is not None

    @property
    def decodable(self) -> bool:
        """Whether the model can generate text."""
        return isinstance(self.model, LanguageModel | Seq2SeqModel) and self.model.decodable

    def capabilities(self) -> JsonObject:
        """Which views this model has, and why it lacks the others."""
        attend, probe, steps = bool(self.model.mechanisms()), bool(self.model.residual_blocks()), self.decodable
        missing = [] if attend else ["this model has no attention"]
        missing += [] if probe else ["it has no blocks with a residual stream, so there is no lens and no patching"]
        missing += [] if steps else ["it cannot decode token by token, because one of its parts needs whole texts"]
        why = "; ".join(missing)
        views = {"attention": attend, "sampling": steps, "beam_search": steps, "probes": probe}
        return {**views, "translation": self.pair, "reason": why}

    def read(self, text: str, target: str | None = None) -> Reading:
        """The tokens and targets of a text, or of a source and its translation."""
        if self.lower:
            text, target = text.lower(), None if target is None else target.lower()
        return read(self.tokenizer, self.specials, text, target, self.device)

    def trace(self, text: str, target: str | None = None) -> Trace:
        """Run the model on a text once and keep the inputs of its attentions."""
        reading, features = self.read(text, target), []
        forward = lambda: features.append(reading.features(self.model))  # noqa: E731
        observations = observe(self.model, forward, values=True, spill=TensorSpill())
        if not observations:
            raise UserError("this model has no attention to look at; its loss and samples are under Runs")
        with evaluation_mode(self.model):
            loss = mean(reading.losses(self.model, features[0]))
        inputs, target_tokens, predicted = self._texts(reading.inputs[0]), None, None
        if reading.source is not None:
            inputs, target_tokens = self._texts(reading.source[0]), inputs
            predicted = self._texts(reading.targets)
        return Trace(inputs, target_tokens, predicted, observations, loss, self._random_scores)

    def _random_scores(self) -> list[dict[str, list[float]]]:
        """The role scores from random texts of each attention; [] for sequence-to-sequence models."""
        text = random_text(self.tokenizer.size, self.context)
        if text is None or not isinstance(self.model, LanguageModel):
            return []
        return on_random_text(self.model, text.to(self.device))

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

        A translation continues ``target``, which may be empty.
        """
        draw = Draw(sampling, count, seed, position)
        if self.specials is None:
            return continue_text(self._language_model, self.read(text, target).inputs[0].tolist(), draw, self.tokenizer)
        reading = self.read(text, target or " ")
        begun = reading.inputs[0, 1:].tolist() if target else []
        source = _source(reading)
        return continue_translation(self._seq2seq, source, begun, draw, self.tokenizer, self.specials)

    def beam(self, text: str, beams: int = 3, length: int = 12) -> JsonObject:
        """Beam search as a tree: of continuations, or of translations as in `regard translate`."""
        if self.specials is None:
            tokens = self.read(text).inputs[0].tolist()
            tree = continuation_tree(self._language_model, tokens, beams, length, self._text)
        else:
            constraints, source = self._constraints(length), _source(self.read(text, " "))
            tree = translation_tree(self._seq2seq, source, constraints, beams, self._text)
        return {"nodes": tree.nodes}

    def lens(self, text: str, target: str | None = None) -> JsonObject:
        """The logit lens: the prediction of each layer if it were the last."""
        return lens(self.model, self.tokenizer, self.specials, self.read(text, target))

    def ablate(
        self, text: str, heads: Sequence[tuple[int, int]], *, count: int = 40, seed: int = 1, target: str | None = None
    ) -> JsonObject:
        """Loss and generated text without these (attention, head)."""
        reading = self.read(text, target)
        return ablate(self.model, reading, heads, lambda: self._generate(reading, count, seed))

    def patch(self, text: str, source: str, layer: int, positions: Sequence[int] | None = None) -> JsonObject:
        """Loss and next token with the residual stream of ``source`` inserted at a layer."""
        if self.pair:
            raise UserError("patching needs a language model, and this model translates")
        return patch(self.model, self.tokenizer, self.read(text), self.read(source), layer, positions)

    def _generate(self, reading: Reading, count: int, seed: int) -> str | None:
        """A continuation as by `regard generate`, or a greedy translation; None if the model cannot decode."""
        if not 0 <= count <= MAX_TOKENS:
            raise UserError(f"0 to {MAX_TOKENS} tokens are generated, not {count}")
        if not count or not self.decodable:
            return None
        if self.specials is None:
            prompt = reading.inputs[0].tolist()
            decoder = sampling_decoder(self._language_model, [prompt], count, Sampling(), seed=seed, graphs=False)
            return self.tokenizer.decode([int(token) for token in decoder])
        source = _source(reading)
        lengths = torch.tensor([source.shape[1]], device=source.device)
        best = decode_seq2seq(self._seq2seq, source, lengths, self._constraints(count), Sampling(temperature=0.0))[0][0]
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

    def _text(self, token: int) -> str:
        return token_texts(self.tokenizer, self.specials, [token])[0]

    def _texts(self, tokens: Tensor) -> list[str]:
        return token_texts(self.tokenizer, self.specials, tokens.tolist())


def _source(reading: Reading) -> Tensor:
    assert reading.source is not None
    return reading.source
