"""Gradients that explode or vanish, by layer."""

import math
import statistics

import torch

from regard.doctor import Check, Finding, Findings, Gradients, History
from regard.doctor.checks.learning_rate import overshot
from regard.doctor.context import RECENT
from regard.doctor.gradients import LayerPart

#: The norm of the whole gradient, before clipping. A loss that is a mean over tokens has gradients of at most √2 at the
#: logits of each token (softmax minus one-hot), and layers with a gain near 1 (Glorot and Bengio 2010) keep that norm:
#: healthy runs stay below 2. Orders of magnitude more is what Pascanu et al. (2013, sec. 2.1) call exploding.
LARGE = 20.0
#: A norm that grows throughout: so many times the one after warm-up, and at least so large.
GROWTH, GROWN = 4.0, 10.0
#: A layer's gradient relative to that of the same part nearer to the loss: gains multiply (Pascanu et al. 2013, eq. 5),
#: so a factor of 50 between neighbors is not passed on but made there; healthy runs have up to 6.
RATIO = 50.0
#: The same in the other direction: a layer with a fiftieth of the others' gradient learns little.
SMALL = 0.02
#: A matrix's gradient per element, relative to others of the same part: they share inputs or feed each other.
SILENT = 1e-4
NAMED = 3  # tensors that a finding names


class ExplodingGradients(Check):
    kind, description = "exploding_gradients", "gradients explode"
    follows = ("initial_loss", "saturated_units")
    needs_confirmation = True

    def on_history(self, history: History) -> Findings:
        """Gradients that grow throughout a run, though in no layer more than in others."""
        norms = history.norms
        if len(norms) < 6 * RECENT:
            return
        early, late = (statistics.median(part) for part in (norms[RECENT : 3 * RECENT], norms[-2 * RECENT :]))
        if late > max(GROWN, GROWTH * early):
            evidence = f"the gradient's norm has grown from {early:.3g} to {late:.3g}"
            cause = "gradients of earlier updates are still in it, or weights grow without bound"
            limit = "--train.clip 1.0, which limits the damage"
            yield self.finding("", evidence, cause, "clear gradients after every update", limit)

    def on_gradients(self, gradients: Gradients) -> Findings:
        if caused_by_rate(self.run.history):
            return
        lower = "a lower --train.optimizer.lr"
        change = lower if self.run.experiment.train.clip is not None else f"--train.clip 1.0 and {lower}"
        norms = present(gradients)
        if (origin := growth_origin(norms)) is not None:
            ratio, part = origin
            evidence = f"its gradient is {norms[part]:.3g}, {ratio:,.0f} times that of the same part of layers above"
            cause = "something in it multiplies gradients: weights too large, or a wrong backward pass"
            yield self.finding(part.name, evidence, cause, change)
        elif gradients.total > LARGE and norms:
            part = max(norms, key=lambda one: norms[one])
            evidence = f"the gradient's norm is {gradients.total:.3g}, most of it ({norms[part]:.3g}) here"
            cause = "weights whose product with themselves grows from step to step, or inputs far too large"
            yield self.finding(part.name, evidence, cause, change)


class VanishingGradients(Check):
    kind, description = "vanishing_gradients", "gradients vanish"
    follows = ("unoptimized_parameters",)
    needs_confirmation = True

    def on_gradients(self, gradients: Gradients) -> Findings:
        yield from self._missing(gradients)
        norms = present(gradients)
        if gradients.parameters and norms and not any(norms.values()):
            yield self._nothing(gradients)
            return
        if growth_origin(norms) is None and not (gradients.total > LARGE and norms):
            yield from self._small(norms)
        yield from self._silent(gradients)

    def _nothing(self, gradients: Gradients) -> Finding:
        """No weight has a gradient."""
        trained = [one for members in gradients.parameters.values() for one in members if one[1].grad is not None]
        empty = [name for name, p in trained if p.ndim >= 2 and not p.any()]
        evidence = f"the gradients of all {len(trained)} trained tensors are exactly zero"
        if len(empty) > 1:
            evidence += f", and {len(empty)} of the tensors are zero themselves: {', '.join(empty[:NAMED])}"
            cause = "factors that multiply each other all start at zero, so that none gets a gradient, for ever"
            return self.finding(empty[0], evidence, cause, "start one of each two factors at random")
        cause = "the loss does not depend on them: it is constant, clipped, or computed from detached outputs"
        return self.finding("the loss", evidence, cause, "follow the loss back to the weights")

    def _missing(self, gradients: Gradients) -> Findings:
        """Layers without any gradient."""
        norms = gradients.norms
        if all(norm is None for norm in norms.values()):
            return
        cause = "a detach or no_grad cuts it off from the loss, its requires_grad is off, or its output is unused"
        change = "remove the .detach() or no_grad behind it; parameters need requires_grad"
        for layer in dict.fromkeys(part.layer for part, norm in norms.items() if norm is None):
            members = {part.name: norm for part, norm in norms.items() if part.layer == layer}
            missing = [name for name, norm in members.items() if norm is None]
            for where in [layer] if len(missing) == len(members) else missing:
                yield self.finding(where, "no gradient at all reaches it", cause, change)

    def _small(self, norms: dict[LayerPart, float]) -> Findings:
        largest = max(norms.values(), default=0.0)
        for part, norm in norms.items():
            above = max((n for other, n in norms.items() if part.below(other)), default=0.0)
            if norm < SMALL * above or norm == 0 < largest:
                evidence = f"its gradient is {norm:.2g}, and up to {largest:.2g} elsewhere"
                cause = "saturated activations, or weights near zero behind it"
                change = "smaller initial weights and biases there, or another --model.norm or --model.block"
                yield self.finding(part.name, evidence, cause, change)

    @torch.no_grad()
    def _silent(self, gradients: Gradients) -> Findings:
        """Matrices with almost no gradient per element, where others of their own part have one."""
        for part, members in gradients.parameters.items():
            matrices = {name: p for name, p in members if p.ndim >= 2}
            sizes = {n: float(p.grad.norm()) / math.sqrt(p.numel()) for n, p in matrices.items() if p.grad is not None}
            largest = max(sizes.values(), default=0.0)
            for name in matrices:
                where, own = name.rpartition(".")[0], sizes.get(name, 0.0)
                if where != part.name and own < SILENT * largest:
                    evidence = f"its gradient is {own:.1g} per element, and up to {largest:.1g} in {part.name}"
                    cause = "its output does not reach the loss, is detached, or is divided out again"
                    change = "follow its output: a gate that is always 1, a detach, a round, an argmax"
                    yield self.finding(where, evidence, cause, change)


def caused_by_rate(history: History) -> bool:
    """Whether large gradients are a consequence of `rate_too_high`: the first one, before any update, was not large."""
    return bool(history.norms) and history.norms[0] < LARGE and overshot(history)


def present(gradients: Gradients) -> dict[LayerPart, float]:
    """The norms of the parts that have a gradient."""
    return {part: norm for part, norm in gradients.norms.items() if norm is not None}


def growth_origin(norms: dict[LayerPart, float]) -> tuple[float, LayerPart] | None:
    """The part that makes the gradient grow, and by what factor: of those that grow, the nearest to the loss."""
    growing = []
    for part, norm in norms.items():
        above = max((n for other, n in norms.items() if part.below(other)), default=0.0)
        if above > 0 and norm > max(1.0, RATIO * above):
            growing.append((norm / above, part))
    last = max((part.number for _, part in growing), default=0)
    return max((one for one in growing if one[1].number == last), default=None)
