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
from regard.generate import Decoding, Rules, Sampling
from regard.generate import sample_seq2seq as sample_seq2seq
from regard.look.capture.residual import stack
from regard.look.capture.tensor_spill import TensorSpill
from regard.look.capture.trace import at_rest, everything
from regard.look.interventions.ablate import ablate
from regard.look.interventions.lens import lens
from regard.look.interventions.patch import patch
from regard.look.statistics.roles import on_random_text, random_text
from regard.look.views.reading import Reading, mean, read, spelled
from regard.look.views.stepping import MOST, Translating, Writing, step
from regard.look.views.trace_view import Trace
from regard.look.views.tree import continued, translated

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
            from regard.generate.translate import load_trained

            trained = load_trained(run, device, step)
            return cls(trained.model, trained.tokenizer, trained.specials, trained.step, trained.config.lower)
        from regard.generate.load import load_writer

        writer = load_writer(run, device, step)
        return cls(writer.model, writer.tokenizer, None, writer.step)

    @property
    def context(self) -> int:
        """The longest text of training."""
        return self.model.config.context

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def capabilities(self) -> dict[str, Any]:
        """Return which views support this model, and the reason for those that do not."""
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
        views = {"attention": attend, "sampling": steps, "beam_search": steps, "probes": probe}
        return {**views, "translation": self.pair, "reason": why}

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
        with at_rest(self.model):
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
        room = min(max(count, 1), MOST)
        with at_rest(self.model):
            if self.specials is None:
                tokens = self.read(text, other).inputs[0].tolist()
                writing: Writing | Translating = Writing(self.model, self.context, tokens, room)
            else:
                reading = self.read(text, other or " ")
                begun = reading.inputs[0, 1:].tolist() if other else []
                writing = Translating(self.model, self.context, self._source(reading)[0].tolist(), begun, self._rules())
        settings = {"count": count, "seed": seed, "position": position}
        return step(writing, self.tokenizer, self.specials, sampling, **settings)

    def beam(self, text: str, beams: int = 3, length: int = 12) -> dict[str, Any]:
        """Beam search as a tree: of continuations, or of translations as `regard translate` finds them."""
        if self.specials is None:
            tokens = self.read(text).inputs[0].tolist()
            tree = continued(self.model, tokens, self.context, beams, length, self._spell)
        else:
            rules = self._rules(min(length, self.context))
            tree = translated(self.model, self._source(self.read(text, " ")), rules, beams, self._spell)
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
        if not 0 <= count <= MOST:
            raise UserError(f"0 to {MOST} tokens are written, not {count}")
        if not count or not self.steppable:
            return None
        if self.specials is not None:
            source = self._source(reading)
            lengths = torch.tensor([source.shape[1]], device=source.device)
            rules = self._rules(min(count, self.context))
            best = sample_seq2seq(self.model, source, lengths, rules, Sampling(temperature=0.0))[0][0]
            return self.tokenizer.decode(best.tokens)
        settings = {"seed": seed, "context": self.context, "device": self.device, "graphs": False}
        decoding = Decoding(self.model, [reading.inputs[0].tolist()], count, Sampling(), **settings)
        for _ in range(count):
            decoding.next()
        return self.tokenizer.decode(decoding.written[0].tolist())

    def _rules(self, most: int | None = None) -> Rules:
        assert self.specials is not None  # of translations only
        return Rules(self.specials, 0, self.context if most is None else most)

    def _source(self, reading: Reading) -> torch.Tensor:
        assert reading.source is not None
        return reading.source

    def _spell(self, token: int) -> str:
        return spelled(self.tokenizer, self.specials, [token])[0]

    def _spelled(self, tokens: torch.Tensor) -> list[str]:
        return spelled(self.tokenizer, self.specials, tokens.tolist())
