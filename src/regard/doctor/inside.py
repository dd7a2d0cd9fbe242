"""A look into the model during one side pass: attention, units that are dead, experts that are idle or overrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor import limits
from regard.doctor.finding import Finding
from regard.look import attentions, evaluation_mode, heads
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import route, share

#: Tokens of a pass; and of one in which attention is looked at, whose cost grows with the square of a row.
TOKENS, ROW, ROWS = 2048, 256, 2
FEWEST = 64  # tokens from which on a unit that never changes says something

Terms = Callable[[nn.Module, Any], Any]


class Inside:
    """What was seen of a model so far: shares of experts are means over all looks."""

    def __init__(self, model: nn.Module, terms: Terms):
        self._model, self._terms = model, terms
        self._shares: dict[str, list[Tensor]] = {}  # of tokens and of probability, a row each: [2, E]

    def look(self, batch: Any) -> Iterator[Finding]:
        """Everything that one batch shows."""
        yield from self._attention(few(batch, ROWS, ROW))
        dead: dict[str, tuple[float, int, int]] = {}
        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                if isinstance(module, nn.Linear) and any(part.isdigit() for part in name.split(".")):
                    stack.callback(module.register_forward_pre_hook(_units(name, dead)).remove)
                elif isinstance(module, nn.RNNBase):
                    stack.callback(module.register_forward_hook(_cells(name, dead)).remove)
                elif isinstance(module, MixtureOfExperts):
                    stack.callback(module.register_forward_pre_hook(self._routed(name)).remove)
            stack.enter_context(evaluation_mode(self._model))
            self._terms(self._model, few(batch, max(1, TOKENS // batch.inputs.shape[1])))
        yield from _dead(dead)
        yield from self._experts()

    def _attention(self, batch: Any) -> Iterator[Finding]:
        found = heads(attentions(self._model, lambda: self._terms(self._model, batch)))
        for name in dict.fromkeys(head.name for head in found):
            spreads = [head.spread for head in found if head.name == name]
            if max(spreads) < limits.COLLAPSED:
                evidence = f"the entropy of its heads is at most {max(spreads):.1%} of the greatest possible"
                cause = "queries and keys are too large: each row takes one key and ignores the rest"
                change = "--model.qk_norm true, or a lower --train.optimizer.lr"
                yield Finding("attention_collapse", name, evidence, cause, change)
            elif min(spreads) > limits.UNIFORM:
                evidence = f"1 - entropy of its heads, as a share of the greatest, is below {1 - min(spreads):.1e}"
                cause = "its scores are scaled to nothing, or its queries or keys are zero: it takes means"
                change = "mend the scale (1/√d is usual); --model.qk_norm true gives scores a size of their own"
                yield Finding("uniform_heads", name, evidence, cause, change)

    def _routed(self, name: str) -> Callable[..., None]:
        def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
            assert isinstance(layer, MixtureOfExperts)
            config = layer.config
            chosen = route(layer._logits(given[0].flatten(0, -2)), config.active, layer.normalise)
            both = share(chosen.experts, config.experts).double(), chosen.probabilities.double().mean(0)
            self._shares.setdefault(name, []).append(torch.stack(both))

        return note

    def _experts(self) -> Iterator[Finding]:
        for name, seen in self._shares.items():
            layer = self._model.get_submodule(name)
            assert isinstance(layer, MixtureOfExperts)
            shares, gates = torch.stack(seen).mean(0).tolist()
            yield from experts(name, shares, gates, layer.config)


def experts(name: str, shares: list[float], gates: list[float], config: MoEConfig) -> Iterator[Finding]:
    """Of one layer: ``shares`` of all pairs of a token and an expert, and mean probabilities ``gates``.

    An expert that is not chosen for a while, but nearly, is drawn back by the balance loss, whose gradient is in
    proportion to its probability; one without either, or without such a loss, is lost.
    """
    active = config.active
    if len(shares) <= active:
        return
    fair = 1 / len(shares)
    for number, value in enumerate(shares):
        if value < limits.UNUSED * fair and (not config.balance or gates[number] < limits.UNLIKELY * fair):
            evidence = (
                f"it gets {value:.2%} of all choices and {gates[number]:.2g} of probability, {fair:.2g} being fair"
            )
            cause = "its router never chooses it: logits that drifted apart, or too little balance"
            change = "--model.feedforward.balance 0.05 --model.feedforward.z 0.001"
            yield Finding("unused_expert", f"{name}, expert {number}", evidence, cause, change)
        elif _overrun(value * active, value / fair):
            evidence = f"{value * active:.0%} of all tokens go through it, {active * fair:.0%} being fair"
            cause = "its router prefers it whatever the token"
            change = "--model.feedforward.balance 0.05, or --model.feedforward.capacity 1.25"
            yield Finding("overloaded_expert", f"{name}, expert {number}", evidence, cause, change)


def _overrun(tokens: float, times: float) -> bool:
    """Of an expert's share of all tokens, and how many times that is the fair one."""
    return (tokens > limits.OVERLOADED and times > limits.UNFAIR) or (
        tokens > limits.CROWDED and times > limits.MANYFOLD
    )


def _units(name: str, dead: dict[str, tuple[float, int, int]]) -> Callable[..., None]:
    return lambda _, given: _count(name, given[0], dead)


def _cells(name: str, dead: dict[str, tuple[float, int, int]]) -> Callable[..., None]:
    return lambda _, given, out: _count(f"{name}.weights", out[0], dead) if isinstance(out[0], Tensor) else None


def _count(name: str, x: Tensor, dead: dict[str, tuple[float, int, int]]) -> None:
    rows = x.flatten(0, -2)
    if rows.ndim == 2 and len(rows) >= FEWEST:
        least, most = rows.aminmax(dim=0)
        still = int((least == most).sum())
        dead[name] = (still / rows.shape[1], still, rows.shape[1])


def _dead(found: dict[str, tuple[float, int, int]]) -> Iterator[Finding]:
    for name, (part, still, units) in found.items():
        if part > limits.DEAD:
            evidence = f"{still:,} of the {units:,} units that {name} reads are the same for every token"
            cause = "activations that are always off (or always at their end): biases or weights out of range"
            change = "a lower --train.optimizer.lr, or --model.feedforward gelu, which is never quite off"
            yield Finding("dead_units", name.rpartition(".")[0] or name, evidence, cause, change)


def few(batch: Any, rows: int, length: int | None = None) -> Any:
    """The first rows of a batch, each cut to ``length``."""
    count = len(batch.inputs)
    cut = [x[:rows] if isinstance(x, Tensor) and len(x) == count else x for x in batch]
    made = type(batch)(*cut)
    if length is None or made.inputs.shape[1] <= length or not hasattr(made, "slots"):
        return made
    return made._replace(inputs=made.inputs[:, :length], targets=made.targets[:, :length], slots=None)
