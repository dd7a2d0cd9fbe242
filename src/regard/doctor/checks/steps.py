"""Steps that are not what the config describes: loss, gradient, clipping, learning rate, update, batch counter.

Each is compared with the replay of the same step. Only the first stage that differs is reported: the later ones
follow from it.
"""

import math

import torch

from regard.doctor import Check, Findings, ReplayedStep
from regard.doctor.replay import ParameterChange, difference
from regard.pages.numbers import short
from regard.train import TrainingStep

CLOSE = 0.02  # of a ratio, to name it
NAMED = 3  # parameters that a finding names


class StepLoss(Check):
    kind, description = "step_loss", "the loss of a step is not that of its batch"
    rank = 0
    follows = ("batch_counter",)

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        if replayed.stage != "loss":
            return
        got, want, accumulate = replayed.step.loss, replayed.expected.loss, self.run.experiment.train.accumulate
        ratio = got / want if want else math.inf
        evidence = f"it is {got:.4g}, and {want:.4g} for batch {replayed.position} by the task of the config"
        cause = "other batches, other targets or another loss than the config's: some targets count twice or not at all"
        if accumulate > 1 and min(abs(ratio - accumulate), abs(ratio * accumulate - 1)) < CLOSE * accumulate:
            cause = "micro-batches are added where they should be averaged, or averaged twice"
        elif ratio > 10:
            cause = "losses are added over targets where they should be averaged"
        change = "check the loss function, its reduction and the batches that it gets: every target counts once"
        yield self.finding("the loss", f"{evidence} ({ratio:.3g} times)", cause, change)


class StepGradient(Check):
    kind, description = "step_gradient", "the gradient of a step is not that of its loss"
    rank = 0
    follows = ("unoptimized_parameters",)  # whose gradients nothing clears

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        wrong = replayed.wrong_gradients
        if replayed.stage != "gradient":
            return
        changes, total = [replayed.changes[name] for name in wrong], len(replayed.changes)
        ratio = common_ratio(replayed, changes)
        if len(wrong) < 0.9 * total:
            yield from self._some(replayed, wrong)
        elif any(stale(change) for change in changes):
            evidence = "it is the right one plus that of the step before"
            cause = "gradients are not zero before the step: those of earlier batches stay in it"
            yield self.finding(
                "the gradient", evidence, cause, "call zero_grad before the first backward of every step"
            )
        elif ratio is not None:
            evidence = f"all of it is {ratio:.3g} times the right one (norm {replayed.step.norm:.3g})"
            cause = "the loss is scaled before the backward pass: divided by another number of micro-batches or targets"
            yield self.finding("the gradient", evidence, cause, "divide by the number of targets of the whole update")
        else:
            accumulate = self.run.experiment.train.accumulate
            apart = max(difference(change.gradient, change.expected_gradient) for change in changes)
            evidence = f"it differs by {apart:.2g} of its size, with the same loss"
            cause = "something changes gradients between the backward pass and the update"
            if accumulate > 1:
                cause = f"the {accumulate} micro-batches do not count equally, or something changes gradients"
            yield self.finding("the gradient", evidence, cause, "look at what runs between backward and step")

    def _some(self, replayed: ReplayedStep, wrong: list[str]) -> Findings:
        """A part of the parameters has another gradient."""
        first = replayed.changes[wrong[-1]]  # the nearest to the loss: an error passes on to the layers before it
        ratio, zero = common_ratio(replayed, [first]), not first.gradient.any()
        how = "zero" if zero else "another one" if ratio is None else f"{ratio:.3g} times the right one"
        evidence = (
            f"the gradient of {', '.join(wrong[: -NAMED - 1 : -1])} ({len(wrong)} of {len(replayed.changes)}) is {how}"
        )
        cause = "a hook on the parameter or on a module's backward pass changes it, or it is cut off from the loss"
        if ratio is not None and ratio < 0:
            cause = "its sign is reversed: a hook, or a backward pass with the wrong sign"
        yield self.finding(wrong[-1], evidence, cause, "remove the hook, or correct the backward pass")


class StepClipping(Check):
    kind, description = "step_clipping", "gradients are not clipped as configured"
    rank = 0

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        clip, norm = self.run.experiment.train.clip, replayed.expected.norm
        if replayed.stage == "clipping":
            got, want = replayed.lengths
            evidence = f"a gradient of norm {norm:.3g} has {got:.3g} in the update, and {want:.3g} with clip {clip}"
            cause = "gradients are clipped to another norm, or not at all"
            change = "clip the norm of the whole gradient once, before the update"
            yield self.finding("train.clip", evidence, cause, change)


class StepRate(Check):
    kind, description = "step_rate", "the learning rate does not follow its schedule"
    rank = 0

    def on_step(self, step: TrainingStep) -> Findings:
        config, replay, optimizer = self.run.experiment.train, self.run.replay, self.run.optimizer
        if replay is None or optimizer is None:
            return
        factor = config.schedule.factor(step.step - 1, config.steps or 0)
        expected = replay.engine.optimizer.learning_rates(factor)
        used = [float(group["lr"]) for group in optimizer.groups]
        for number, (rate, want) in enumerate(zip([step.lr, *used], [expected[0], *expected], strict=False)):
            if abs(rate - want) > 1e-3 * max(abs(want), 1e-12):
                which = f"that of group {number - 1}" if number else "it"
                evidence = f"at step {step.step} {which} is {short(rate)}, and the schedule gives {short(want)}"
                cause = "something else sets the rate, or the schedule counts other steps"
                change = "set the rate of every group from the schedule, once in each update"
                yield self.finding("train.schedule", evidence, cause, change)
                return


class StepUpdate(Check):
    kind, description = "step_update", "an update is not the optimizer's"
    rank = 0
    follows = ("model_differs", "step_gradient", "unoptimized_parameters")

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        rate = abs(replayed.step.lr - replayed.expected.lr) > 1e-3 * abs(replayed.expected.lr)
        wrong = [] if replayed.stage or rate else replayed.wrong_updates()  # the schedule is another finding
        if not wrong:
            return
        change = max((replayed.changes[name] for name in wrong), key=lambda one: float(one.expected_update.norm()))
        where = "train.optimizer" if len(wrong) > len(replayed.changes) / 2 else wrong[0]
        some = f"of {', '.join(wrong[:NAMED])} ({len(wrong)} of {len(replayed.changes)})"
        evidence, cause = explain_update(change)
        fix = "compare the optimizer's settings and groups with --train.optimizer; step once in each update"
        yield self.finding(where, f"the update {some} {evidence}", cause, fix)


class BatchCounter(Check):
    kind, description = "batch_counter", "steps do not consume the batches that they should"
    rank = 0

    def on_step(self, step: TrainingStep) -> Findings:
        expected = step.step * self.run.experiment.train.accumulate
        if step.position != expected:
            evidence = f"after step {step.step}, {step.position} micro-batches were taken, and {expected} are due"
            cause = "the counter of batches stands still, jumps or starts again: batches repeat or are left out"
            yield self.finding("the batches", evidence, cause, "take --train.accumulate new batches in every step")


def common_ratio(replayed: ReplayedStep, changes: list[ParameterChange]) -> float | None:
    """The factor between the gradients and the expected ones before clipping, if it is one factor."""
    dot = sum(float((c.gradient * c.expected_gradient).sum()) for c in changes)
    size = sum(float(c.expected_gradient.square().sum()) for c in changes)
    ratio = dot / size if size > 0 else 0.0
    alike = all(difference(c.gradient, ratio * c.expected_gradient) < CLOSE for c in changes)
    ours, theirs = replayed.scales
    return ratio * ours / theirs if alike and ratio else None


def stale(change: ParameterChange) -> bool:
    """Whether the gradient of the step before is in this one."""
    if change.earlier is None or not change.earlier.any():
        return False
    rest = change.gradient - change.expected_gradient
    # The run's clipping scales both, so only the direction of the rest and of a sum is compared.
    basis = torch.stack([change.expected_gradient.flatten(), change.earlier.flatten()]).double()
    got = change.gradient.flatten().double()
    weights = torch.linalg.lstsq(basis.T, got[:, None]).solution.flatten()
    left = float((got - weights @ basis).norm()) / max(float(got.norm()), 1e-30)
    return bool(rest.any()) and left < 0.05 and abs(float(weights[1])) > CLOSE


def explain_update(change: ParameterChange) -> tuple[str, str]:
    """Evidence and cause of an update that is not the expected one."""
    got, want, weight = change.update, change.expected_update, change.weight
    if not got.any():
        return "is zero", "the optimizer does not have them, or something puts the old weights back"
    ratio = float((got * want).sum() / want.square().sum().clamp(min=1e-30))
    if difference(got, ratio * want) < CLOSE:
        if ratio < 0:
            return f"is {ratio:.3g} times the expected one", "its sign is reversed: the update raises the loss"
        return f"is {ratio:.3g} times the expected one", "another learning rate for them, or more than one step"
    rest = got - want
    shrunk = float((rest * weight).sum() / weight.square().sum().clamp(min=1e-30))
    if difference(rest, shrunk * weight) < 0.1:
        return f"also multiplies the weights by {1 + shrunk:.4g}", "another weight decay than the configured one"
    return f"differs by {difference(got, want):.2g}", "other betas, momentum or epsilon, or a write to the weights"
