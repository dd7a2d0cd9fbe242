"""Experts of a mixture that get no tokens, or nearly all."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from regard.doctor import Check, Findings, SidePass, TrainingRun
from regard.doctor.context import Record
from regard.doctor.model_pass import first_rows
from regard.doctor.side_pass import LENGTH
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import route, share
from regard.prove.comparison import forward_hooks

#: An expert's share of tokens relative to the fair one; Fedus et al. (2022, sec. 2.2) call experts balanced within a
#: factor of 2. And its mean probability relative to the fair one: a twentieth is a logit of 3 below the others'.
UNUSED, UNLIKELY = 0.02, 0.05
#: The share of all tokens that one expert gets, and at least so many times its fair share; or a smaller share that is
#: many times the fair one.
OVERLOADED, UNFAIR = 0.8, 1.5
CROWDED, MANYFOLD = 0.5, 4.0
ROWS = 16  # of a batch, whose tokens are counted


class ExpertLoad(Check):
    """Means over all examinations, or over the second half of the records.

    An expert that is nearly selected is drawn back by the balance loss, whose gradient is proportional to its
    probability; one with neither tokens nor probability, or without such a loss, stays unused.
    """

    kind, description = "expert_load", "an expert gets no tokens, or nearly all"
    needs_confirmation = True

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._routed: dict[str, list[Tensor]] = {}  # share of tokens and of probability, [2, E]

    def on_model(self, side_pass: SidePass) -> Findings:
        layers = mixtures(side_pass.model)

        def note(name: str, layer: MixtureOfExperts, inputs: tuple[Tensor, ...], output: object) -> None:
            chosen = route(layer._logits(inputs[0].flatten(0, -2)), layer.config.active, layer.normalise)
            shares = share(chosen.experts, layer.config.experts).double()
            self._routed.setdefault(name, []).append(torch.stack((shares, chosen.probabilities.double().mean(0))))

        with forward_hooks((layer, partial(note, name)) for name, layer in layers):
            if layers:
                side_pass.total(first_rows(side_pass.batch, ROWS, LENGTH))
        for name, layer in layers:
            yield from self.judge(name, torch.stack(self._routed[name]).mean(0).tolist(), layer.config)

    def on_records(self, records: Sequence[Record]) -> Findings:
        keys = ("expert_share", "expert_gate")
        logged = [[record[key] for key in keys] for record in records if all(key in record for key in keys)]
        late = logged[len(logged) // 2 :]  # routers begin at random
        if len(late) < 2 or self.run.model is None:
            return
        means = torch.tensor(late, dtype=torch.float64).mean(0)  # [2, layers, experts]
        for (name, layer), load in zip(mixtures(self.run.model), means.transpose(0, 1).tolist(), strict=False):
            yield from self.judge(name, load, layer.config)

    def judge(self, layer: str, load: list[list[float]], config: MoEConfig) -> Findings:
        """Findings from each expert's share of all (token, expert) assignments and its mean router probability."""
        fair, active = 1 / len(load[0]), config.active
        if active >= len(load[0]):
            return
        for number, (own, gate) in enumerate(zip(*load, strict=True)):
            where, tokens, times = f"{layer}, expert {number}", own * active, own / fair
            if own < UNUSED * fair and (not config.balance or gate < UNLIKELY * fair):
                evidence = f"it gets {own:.2%} of all assignments and a probability of {gate:.2g}; fair is {fair:.2g}"
                cause = "its router never selects it: logits that drifted apart, or too little balance"
                change = "--model.feedforward.balance 0.05 --model.feedforward.z 0.001"
                yield self.finding(where, evidence, cause, change)
            elif (tokens > OVERLOADED and times > UNFAIR) or (tokens > CROWDED and times > MANYFOLD):
                evidence = f"{tokens:.0%} of all tokens go through it; fair is {active * fair:.0%}"
                changes = "--model.feedforward.balance 0.05", "--model.feedforward.capacity 1.25"
                yield self.finding(where, evidence, "its router prefers it for every token", *changes)


def mixtures(model: nn.Module) -> list[tuple[str, MixtureOfExperts]]:
    """The mixtures of experts of a model with their names."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)]
