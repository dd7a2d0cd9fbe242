"""Experts of a mixture that get no tokens, or nearly all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor import Check, Finding, SidePass, TrainingRun
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import route, share

#: An expert's share of tokens relative to the fair one; Fedus et al. (2022, sec. 2.2) call experts balanced within a
#: factor of 2. And its mean probability relative to the fair one: a twentieth is a logit of 3 below the others'.
UNUSED, UNLIKELY = 0.02, 0.05
#: The share of all tokens that one expert gets, and at least so many times its fair share; or a smaller share that is
#: many times the fair one.
OVERLOADED, UNFAIR = 0.8, 1.5
CROWDED, MANYFOLD = 0.5, 4.0


class Load(NamedTuple):
    """How the tokens of one layer are routed."""

    layer: str
    shares: list[float]  # of all (token, expert) assignments, by expert
    probabilities: list[float]  # mean router probability, by expert
    config: MoEConfig


def mixtures(model: nn.Module) -> dict[str, MixtureOfExperts]:
    """The mixtures of experts of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}


class ExpertCheck(Check):
    """Base of both checks: means over all examinations, or over the second half of the records."""

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._routed: dict[str, list[Tensor]] = {}  # share of tokens and of probability, [2, E]

    def judge(self, load: Load) -> Iterator[Finding]:
        raise NotImplementedError

    def on_model(self, side_pass: SidePass) -> Iterator[Finding]:
        layers = mixtures(side_pass.model)
        names = {module: name for name, module in layers.items()}

        def record(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            assert isinstance(layer, MixtureOfExperts)
            chosen = route(layer._logits(inputs[0].flatten(0, -2)), layer.config.active, layer.normalise)
            shares = share(chosen.experts, layer.config.experts).double()
            both = torch.stack((shares, chosen.probabilities.double().mean(0)))
            self._routed.setdefault(names[layer], []).append(both)

        if layers:
            side_pass.with_hooks((layer, record) for layer in layers.values())
        for name, layer in layers.items():
            shares, probabilities = torch.stack(self._routed[name]).mean(0).tolist()
            yield from self.judge(Load(name, shares, probabilities, layer.config))

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
        keys = ("expert_share", "expert_gate")
        logged = [[record[key] for key in keys] for record in records if all(key in record for key in keys)]
        late = logged[len(logged) // 2 :]  # routers begin at random
        if len(late) < 2 or self.run.model is None:
            return
        means = torch.tensor(late, dtype=torch.float64).mean(0)  # [2, layers, experts]
        layers = mixtures(self.run.model)
        for (name, layer), (shares, gates) in zip(layers.items(), means.transpose(0, 1).tolist(), strict=False):
            yield from self.judge(Load(name, shares, gates, layer.config))


class UnusedExpert(ExpertCheck):
    """An expert that is nearly selected is drawn back by the balance loss, whose gradient is proportional to its
    probability; one with neither tokens nor probability, or without such a loss, stays unused.
    """

    kind, description = "unused_expert", "an expert gets no tokens"
    needs_confirmation = True

    def judge(self, load: Load) -> Iterator[Finding]:
        fair = 1 / len(load.shares)
        if load.config.active >= len(load.shares):
            return
        for number, (value, probability) in enumerate(zip(load.shares, load.probabilities, strict=True)):
            if value < UNUSED * fair and (not load.config.balance or probability < UNLIKELY * fair):
                evidence = (
                    f"it gets {value:.2%} of all assignments and a probability of {probability:.2g}; fair is {fair:.2g}"
                )
                cause = "its router never selects it: logits that drifted apart, or too little balance"
                change = "--model.feedforward.balance 0.05 --model.feedforward.z 0.001"
                yield self.finding(f"{load.layer}, expert {number}", evidence, cause, change)


class OverloadedExpert(ExpertCheck):
    kind, description = "overloaded_expert", "an expert gets nearly all tokens"
    needs_confirmation = True

    def judge(self, load: Load) -> Iterator[Finding]:
        fair, active = 1 / len(load.shares), load.config.active
        if active >= len(load.shares):
            return
        for number, value in enumerate(load.shares):
            tokens, times = value * active, value / fair
            if (tokens > OVERLOADED and times > UNFAIR) or (tokens > CROWDED and times > MANYFOLD):
                evidence = f"{tokens:.0%} of all tokens go through it; fair is {active * fair:.0%}"
                cause = "its router prefers it for every token"
                change = "--model.feedforward.balance 0.05, or --model.feedforward.capacity 1.25"
                yield self.finding(f"{load.layer}, expert {number}", evidence, cause, change)
