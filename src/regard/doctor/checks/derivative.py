"""Gradients that are not the derivative of the loss, and updates that raise it."""

from itertools import takewhile

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties
from regard.attention.mechanisms.segments import Segmented
from regard.doctor import Check, Findings, ModelPass, ReplayedStep, TrainingRun
from regard.doctor.checks.gradients import LARGE, caused_by_rate
from regard.doctor.gradients import LayerPart, Parameters, layer_parts
from regard.doctor.model_pass import first_rows
from regard.look import evaluation_mode
from regard.prove.batches import Batch

#: The length of a trial step relative to the weights: twice, the second to confirm the first.
STEPS = (2e-3, 5e-4)
TRIALS = ((STEPS[0], (1,)), (STEPS[0], (1, -1)), (STEPS[1], (1, -1)))  # lengths and directions, while there is doubt
#: The largest predicted change of the loss, relative to it: activations that explode are linear only nearby.
MOST = 2e-3
#: The least predicted change of the loss, relative to it: float32 sums of a few hundred tokens are good to 1e-6.
CLEAR = 2e-5
#: Bounds of measured / predicted change. Curvature moves it by a few percent.
LEAST, GREATEST = 0.6, 1.6
#: The difference of that ratio between the two steps, relative to its distance from 1: where the curvature makes the
#: prediction wrong, a quarter of the step brings the ratio nearer to 1; a wrong derivative keeps it.
SETTLED = 0.25
#: The cosine between gradient and update of one of the measured steps, if all are positive. Adam's is about -0.3, and
#: momentum and noise may turn it a little.
UPWARD = 0.1
PARTS = 8  # layer parts in one examination; further ones come in the next
LENGTH = 64

Slope = tuple[float, float]  # the measured and the predicted change of the loss


class WrongDerivative(Check):
    """Moves the weights of one part after the other along its gradient: the loss must change as the gradient says."""

    kind, description = "wrong_derivative", "a gradient is not the derivative of the loss"
    rank = 0
    follows = ("random_numbers", "exploding_gradients", "saturated_units")

    def on_pass(self, model_pass: ModelPass) -> Findings:
        history = self.run.history
        if not model_pass.deep or (history.norm() > LARGE and caused_by_rate(history)):
            return  # units are at their ends and gradients large: no step is short enough for a linear prediction
        modules = model_pass.model.modules()
        if any(isinstance(m, Segmented) or (isinstance(m, ModuleProperties) and m.discontinuous) for m in modules):
            return  # gradients that stop or jump by design
        batch = first_rows(model_pass.few, 2, LENGTH)
        parts = layer_parts(model_pass.model, frozen=False)
        names = sorted(parts, key=lambda part: (part.number, part.name))
        turn = model_pass.number * PARTS % max(len(names), 1)
        chosen = {name: parts[name] for name in (names[turn:] + names[:turn])[:PARTS]}
        for part, (measured, predicted) in slopes(model_pass, batch, chosen).items():
            evidence = f"along it the loss changes by {measured:.3g} where it predicts {predicted:.3g}"
            cause = "a detach, a wrong backward pass or a hook: a part of the derivative is missing or scaled"
            change = "test it with torch.autograd.gradcheck; a straight-through estimator differs on purpose"
            yield self.finding(part.name, evidence, cause, change)


class UpdateRaisesLoss(Check):
    kind, description = "update_raises_loss", "updates go up the gradient that they were made from"
    rank = 0
    follows = ("setting_dominates", "foreign_writes", "step_differs")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._cosines: list[float] = []

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        pairs = [(c.expected_gradient, c.update) for c in replayed.changes.values()]
        sizes = [float(torch.nn.utils.get_total_norm(side)) for side in zip(*pairs, strict=True)]
        product = sum(float((gradient * update).sum()) for gradient, update in pairs)
        self._cosines.append(product / max(sizes[0] * sizes[1], 1e-30))
        if len(self._cosines) > 1 and min(self._cosines) > 0 and max(self._cosines) > UPWARD:
            angles = ", ".join(f"{one:.2g}" for one in self._cosines[-4:])
            evidence = f"the cosine between gradient and update is {angles} in measured steps"
            cause = "its sign is reversed, or it is made from other weights or batches: it raises the loss"
            yield self.finding("train.optimizer", evidence, cause, "check the sign of the update")


def slopes(model_pass: ModelPass, batch: Batch, parts: Parameters) -> dict[LayerPart, Slope]:
    """Of the parts whose gradient is wrong, the measured and the predicted change of the loss."""
    parameters = [p for members in parts.values() for _, p in members if p.requires_grad]
    with evaluation_mode(model_pass.model):
        with torch.enable_grad():
            loss = summed(model_pass, batch)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients = dict(zip(parameters, found, strict=True))
        wrong = {}
        for part, members in parts.items():
            own = [(p, g) for _, p in members if (g := gradients.get(p)) is not None]
            # One pass along the gradient shows most parts to be right; of the others, both directions are compared.
            tries = (_trial(model_pass, batch, own, step, float(loss), signs) for step, signs in TRIALS if own)
            trials = list(takewhile(_doubtful, tries))[1:]
            ratios = [trial[0] / trial[1] for trial in trials if trial is not None]
            if own and len(ratios) == len(STEPS) and max(ratios) - min(ratios) < SETTLED * abs(max(ratios) - 1):
                wrong[part] = trials[-1]
    return wrong


def summed(model_pass: ModelPass, batch: Batch) -> Tensor:
    """The summed loss in float32, whatever the run's format is."""
    return next(iter(model_pass.run.task.terms(model_pass.model, batch).values())).total


def _doubtful(trial: Slope | None) -> bool:
    """Whether the loss does not change as predicted."""
    return trial is not None and not LEAST < trial[0] / trial[1] < GREATEST


def _trial(
    model_pass: ModelPass,
    batch: Batch,
    own: list[tuple[nn.Parameter, Tensor]],
    step: float,
    loss: float,
    signs: tuple[int, ...],
) -> Slope | None:
    """The change of the loss from a step against the gradient, or from none, to one along it; and the predicted one."""
    length = float(torch.stack([g.norm() for _, g in own]).norm())
    size = float(torch.stack([p.norm() for p, _ in own]).norm())
    if not length or not size:
        return None
    most = MOST * step / STEPS[0] * abs(loss) / (2 * length**2)
    reach, before, losses = min(step * size / length, most), [p.clone() for p, _ in own], []
    for sign in signs:
        for (p, g), old in zip(own, before, strict=True):
            p.data.copy_(old + sign * reach * g)  # not a write in the sense of `p._version`
        if all(torch.equal(p, old) for (p, _), old in zip(own, before, strict=True)):
            return None  # the step is below the rounding of the weights
        losses.append(float(summed(model_pass, batch)))
    for (p, _), old in zip(own, before, strict=True):
        p.data.copy_(old)
    predicted = len(signs) * reach * length**2
    return (losses[0] - [*losses, loss][1], predicted) if predicted > len(signs) / 2 * CLEAR * abs(loss) else None
