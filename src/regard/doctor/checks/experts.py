"""Experts of a mixture that get no tokens, or nearly all."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.doctor import Check, Findings, SidePass, TrainingRun
from regard.doctor.context import Record
from regard.doctor.side_pass import Measure
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import route
from regard.nn.experts.routing import share as assignments

#: An expert's share of tokens relative to the fair one; Fedus et al. (2022, sec. 2.2) call experts balanced within a
#: factor of 2. And its mean probability relative to the fair one: a twentieth is a logit of 3 below the others'.
UNUSED, UNLIKELY = 0.02, 0.05
#: The share of all tokens that one expert gets, and at least so many times its fair share; or a smaller share that is
#: many times the fair one.
OVERLOADED, UNFAIR = 0.8, 1.5
CROWDED, MANYFOLD = 0.5, 4.0


def mixtures(model: nn.Module) -> dict[str, MixtureOfExperts]:
    """The mixtures of experts of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}


def routing(layer: MixtureOfExperts, inputs: tuple[Tensor, ...], output: object) -> Tensor:
    """Each expert's share of the assignments and its mean probability, [2, E]."""
    chosen = route(layer._logits(inputs[0].flatten(0, -2)), layer.config.active, layer.normalise)
    shares = assignments(chosen.experts, layer.config.experts).double()
    return torch.stack((shares, chosen.probabilities.double().mean(0)))


class ExpertCheck(Check):
    """Base of both checks: means over all examinations, or over the second half of the records."""

    measures = (Measure(lambda _, layer: isinstance(layer, MixtureOfExperts), routing),)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._routed: dict[str, list[Tensor]] = {}  # share of tokens and of probability, [2, E]

    def judge(self, layer: str, shares: list[float], gates: list[float], config: MoEConfig) -> Findings:
        """Findings from each expert's share of all (token, expert) assignments and its mean router probability."""
        raise NotImplementedError

    def on_model(self, side_pass: SidePass) -> Findings:
        layers = mixtures(side_pass.model)
        for name, calls in side_pass.measured(self.measures[0]).items():
            routed = self._routed.setdefault(name, [])
            routed += calls
            shares, gates = torch.stack(routed).mean(0).tolist()
            yield from self.judge(name, shares, gates, layers[name].config)

    def on_records(self, records: Sequence[Record]) -> Findings:
        keys = ("expert_share", "expert_gate")
        logged = [[record[key] for key in keys] for record in records if all(key in record for key in keys)]
        late = logged[len(logged) // 2 :]  # routers begin at random
        if len(late) < 2 or self.run.model is None:
            return
        means = torch.tensor(late, dtype=torch.float64).mean(0)  # [2, layers, experts]
        layers = mixtures(self.run.model)
        for (name, layer), (shares, gates) in zip(layers.items(), means.transpose(0, 1).tolist(), strict=False):
            yield from self.judge(name, shares, gates, layer.config)


class UnusedExpert(ExpertCheck):
    """An expert that is nearly selected is drawn back by the balance loss, whose gradient is proportional to its
    probability; one with neither tokens nor probability, or without such a loss, stays unused.
    """

    kind, description = "unused_expert", "an expert gets no tokens"
    needs_confirmation = True

    def judge(self, layer: str, shares: list[float], gates: list[float], config: MoEConfig) -> Findings:
        fair = 1 / len(shares)
        for number, (share, gate) in enumerate(zip(shares, gates, strict=True)):
            unlikely = not config.balance or gate < UNLIKELY * fair
            if config.active < len(shares) and share < UNUSED * fair and unlikely:
                evidence = f"it gets {share:.2%} of all assignments and a probability of {gate:.2g}; fair is {fair:.2g}"
                cause = "its router never selects it: logits that drifted apart, or too little balance"
                change = "--model.feedforward.balance 0.05 --model.feedforward.z 0.001"
                yield self.finding(f"{layer}, expert {number}", evidence, cause, change)


class OverloadedExpert(ExpertCheck):
    kind, description = "overloaded_expert", "an expert gets nearly all tokens"
    needs_confirmation = True

    def judge(self, layer: str, shares: list[float], gates: list[float], config: MoEConfig) -> Findings:
        fair, active = 1 / len(shares), config.active
        for number, share in enumerate(shares):
            tokens, times = share * active, share / fair
            crowded = (tokens > OVERLOADED and times > UNFAIR) or (tokens > CROWDED and times > MANYFOLD)
            if active < len(shares) and crowded:
                evidence = f"{tokens:.0%} of all tokens go through it; fair is {active * fair:.0%}"
                cause = "its router prefers it for every token"
                changes = "--model.feedforward.balance 0.05", "--model.feedforward.capacity 1.25"
                yield self.finding(f"{layer}, expert {number}", evidence, cause, *changes)
