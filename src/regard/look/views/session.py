"""A model and its tokenizer, ready to be looked into: everything the page and `regard look` ask for, as plain numbers.

Answers are dictionaries that JSON can hold (a number may be NaN) and NumPy arrays. A person's mistake is a `UserError`.
Nothing here changes the model: hooks are gone when a call is over, and modes and random states are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from regard.attention import Mechanism
from regard.errors import UserError
from regard.generate import OutputConstraints, Sampling, sample_seq2seq, sampling_decoder
from regard.look.capture.residual import stack
from regard.look.capture.tensor_spill import TensorSpill
from regard.look.capture.trace import evaluation_mode, everything
from regard.look.interventions.ablate import ablate
from regard.look.interventions.lens import lens
from regard.look.interventions.patch import patch
from regard.look.statistics.roles import on_random_text, random_text
from regard.look.views.reading import Reading, mean, read, spelled
from regard.look.views.stepping import MAX_TOKENS, Draw, continue_text, continue_translation
from regard.look.views.trace_view import Trace
from regard.look.views.tree import continuation_tree, translation_tree

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials
    from regard.runs import Run

__all__ = ["Session", "Trace"]


@dataclass(frozen=True)
class Session:
    """One model at rest."""

    model: Any
    tokenizer: Tokenizer
    specials: Specials | None = None  # None: a language model; else one that translates
    step: int | None = None  # of the checkpoint
    lower: bool = False  # translation: the source is read in lower case

    @classmethod
    def load(cls, run: Run, device: torch.device | str = "cpu", step: int | None = None) -> Session:
        """The newest whole checkpoint of a run, or that of ``step``."""
        if run.config.get("data", {}).get("kind") == "pairs":
            from regard.generate.translation import load_translation_model

            loaded = load_translation_model(run, device, step)
            return cls(loaded.model, loaded.tokenizer, loaded.specials, loaded.step, loaded.config.lower)
        from regard.generate.load import load_model

        model, tokenizer, reached, _ = load_model(run, device, step)
        return cls(model, tokenizer, None, reached)

    @property
    def context(self) -> int:
        """The longest text of training."""
        return self.model.config.context

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def can(self) -> dict[str, Any]:
        """Which views there are for this model, and in words why not the others."""
        attend = any(isinstance(module, Mechanism) for module in self.model.modules())
        try:
            probe = bool(stack(self.model))
        except UserError:
            probe = False
        steps = self.steppable
        missing = [] if attend else ["this model has no attention"]
        missing += [] if probe else ["it has no blocks with a residual stream, so there is no lens and no patching"]
        missing += [] if steps else ["one of its parts needs whole texts and cannot go on token by token"]
        why = "; ".join(missing)
        return {"attend": attend, "step": steps, "beam": steps, "probe": probe, "pair": self.pair, "why": why}

    @property
    def steppable(self) -> bool:
        """Whether it can write."""
        parts = [module for module in self.model.modules() if isinstance(module, Mechanism)]
        return hasattr(self.model, "step") and all(part.steppable for part in parts)

    @property
    def pair(self) -> bool:
        """Whether it reads a source and its translation."""
        return self.specials is not None

    def read(self, text: str, other: str | None = None) -> Reading:
        """What the model sees of a text, or of a source and its translation."""
        if self.lower:
            text, other = text.lower(), None if other is None else other.lower()
        return read(self.tokenizer, self.specials, text, other, self.device)

    def trace(self, text: str, other: str | None = None) -> Trace:
        """Read a text once and keep what its attentions were given."""
        reading, features = self.read(text, other), []
        found = everything(self.model, lambda: features.append(reading.features(self.model)), True, TensorSpill())
        if not found:
            raise UserError("this model has no attention to look at; its loss and samples are under Runs")
        with evaluation_mode(self.model):
            loss = mean(reading.losses(self.model, features[0]))
        written = [None] if reading.source is None else [reading.source[0], reading.inputs[0], reading.targets]
        spelling = [self._spelled(one if one is not None else reading.inputs[0]) for one in written]
        tokens, others, predicted = spelling if len(spelling) == 3 else (*spelling, None, None)
        return Trace(tokens, others, predicted, found, loss, self._random_scores)

    def _random_scores(self) -> list[dict[str, list[float]]]:
        """Of each attention what only random texts can tell; nothing for a model of pairs."""
        text = None if self.pair else random_text(self.tokenizer.size, self.context)
        return [] if text is None else on_random_text(self.model, text.to(self.device))

    def next(
        self,
        text: str,
        sampling: Sampling,
        *,
        count: int = 1,
        seed: int = 1,
        position: int = 0,
        other: str | None = None,
    ) -> dict[str, Any]:
        """The next token: the distribution, and ``count`` tokens drawn; ``position`` were drawn before with this seed.

        A translation goes on from ``other``, which may be empty.
        """
        draw = Draw(sampling, count, seed, position)
        if self.specials is None:
            return continue_text(self.model, self.read(text, other).inputs[0].tolist(), draw, self.tokenizer)
        reading = self.read(text, other or " ")
        begun = reading.inputs[0, 1:].tolist() if other else []
        return continue_translation(self.model, self._source(reading), begun, draw, self.tokenizer, self.specials)

    def beam(self, text: str, beams: int = 3, length: int = 12) -> dict[str, Any]:
        """Beam search as a tree: of continuations, or of translations as `regard translate` finds them."""
        if self.specials is None:
            tokens = self.read(text).inputs[0].tolist()
            tree = continuation_tree(self.model, tokens, beams, length, self._spell)
        else:
            constraints = self._constraints(min(length, self.context))
            tree = translation_tree(self.model, self._source(self.read(text, " ")), constraints, beams, self._spell)
        return {"nodes": tree.nodes}

    def lens(self, text: str, other: str | None = None) -> dict[str, Any]:
        """What each layer would say if it were the last."""
        return lens(self.model, self.tokenizer, self.specials, self.read(text, other))

    def ablate(
        self, text: str, heads: Sequence[tuple[int, int]], *, count: int = 40, seed: int = 1, other: str | None = None
    ) -> dict[str, Any]:
        """Loss and text with these (attention, head) silenced."""
        reading = self.read(text, other)
        return ablate(self.model, reading, heads, lambda: self._written(reading, count, seed))

    def patch(self, text: str, source: str, layer: int, positions: Sequence[int] | None = None) -> dict[str, Any]:
        """Loss and next token with the residual stream of ``source`` put in at a layer."""
        if self.pair:
            raise UserError("patching reads two texts of a model of one text, and this one translates")
        return patch(self.model, self.tokenizer, self.read(text), self.read(source), layer, positions)

    def _written(self, reading: Reading, count: int, seed: int) -> str | None:
        """A continuation as `regard generate` would write it, or a translation; None where there is none."""
        if not 0 <= count <= MAX_TOKENS:
            raise UserError(f"0 to {MAX_TOKENS} tokens are written, not {count}")
        if not count or not self.steppable:
            return None
        if self.specials is not None:
            source = self._source(reading)
            lengths = torch.tensor([source.shape[1]], device=source.device)
            constraints = self._constraints(min(count, self.context))
            best = sample_seq2seq(self.model, source, lengths, constraints, Sampling(temperature=0.0))[0][0]
            return self.tokenizer.decode(best.tokens)
        prompt = reading.inputs[0].tolist()
        decoder = sampling_decoder(self.model, [prompt], count, Sampling(), seed=seed, graphs=False)
        return self.tokenizer.decode([int(token) for token in decoder])

    def _constraints(self, max_length: int) -> OutputConstraints:
        assert self.specials is not None  # of translations only
        return OutputConstraints.of(self.specials, 0, max_length)

    def _source(self, reading: Reading) -> torch.Tensor:
        assert reading.source is not None
        return reading.source

    def _spell(self, token: int) -> str:
        return spelled(self.tokenizer, self.specials, [token])[0]

    def _spelled(self, tokens: torch.Tensor) -> list[str]:
        return spelled(self.tokenizer, self.specials, tokens.tolist())
