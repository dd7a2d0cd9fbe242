"""Steps that are not what the config describes: batches, loss, gradient, clipping, learning rate, update.

Each is compared with the replay of the same step. Only the first stage that differs is reported: the later ones
follow from it.
"""

import math

import torch

from regard.doctor import Check, Finding, Findings, ModelPass, ReplayedStep, TrainingRun
from regard.doctor.calls import difference, projection
from regard.doctor.replay import ParameterChange
from regard.pages.numbers import short
from regard.train import TrainingStep
from regard.train.device import move

CLOSE = 0.02  # of a ratio, to name it
NAMED = 3  # parameters that a finding names
#: Micro-batches of an update that are computed again; the difference of its loss to theirs, where dropout does less.
MOST, ADDED = 16, 0.3
LOST = 0.05  # the share of elements that are zero and should not be, from which on they were rounded away


class StepDiffers(Check):
    kind, description = "step_differs", "a step is not what the config describes"
    rank = 0
    follows = ("model_differs", "unoptimized_parameters", "foreign_writes")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._miscounted = False
        self._due: float | None = None  # the loss of the first update of this session

    def on_start(self) -> Findings:
        """The replay's engine adds micro-batches up by the same class: here each is computed by itself."""
        run = self.run
        if run.data is None or run.model is None or not 1 < run.micro_batches <= MOST or run.model.carries_state:
            return ()
        batches = [run.batch(run.position + number) for number in range(run.micro_batches)]
        if all(map(run.usable, batches)):
            total = count = 0.0
            model_pass = ModelPass(run, batches[0])
            for batch in batches:
                with model_pass.mode(training=True):
                    terms = run.terms(move(batch, run.device))
                term = next(iter(terms.values()))
                if len(terms) > 1 or not term.additive:
                    return ()
                total, count = total + float(term.total) * term.weight, count + float(term.count)
            self._due = total / max(count, 1.0)
        return ()

    def _micro_batches(self, step: TrainingStep) -> Findings:
        due, self._due = self._due, None
        if due and abs(step.loss / due - 1) > ADDED:
            evidence = f"the loss of step {step.step} is {step.loss:.4g}, and the mean over its "
            cause = f"it is {step.loss / due:.3g} times that: their losses are added, or divided by another count"
            change = "divide each sum by the number of targets of all micro-batches; then add losses and gradients up"
            yield self.finding(
                "train.accumulate", f"{evidence}{self.run.micro_batches} micro-batches {due:.4g}", cause, change
            )

    def on_step(self, step: TrainingStep) -> Findings:
        yield from self._micro_batches(step)
        expected = step.step * self.run.experiment.train.accumulate
        if step.position != expected:
            self._miscounted = True
            evidence = f"after step {step.step}, {step.position} micro-batches were taken, and {expected} are due"
            cause = "the counter of batches stands still, jumps or starts again: batches repeat or are left out"
            yield self.finding("the batches", evidence, cause, "take --train.accumulate new batches in every step")
        yield from self._rate(step)

    def _rate(self, step: TrainingStep) -> Findings:
        """The learning rates of all groups, in every step."""
        config, replay, optimizer = self.run.experiment.train, self.run.replay, self.run.optimizer
        if replay is None or optimizer is None:
            return
        expected = replay.engine.optimizer.learning_rates(config.factor(step.step - 1))
        used = [float(group["lr"]) for group in optimizer.groups]
        for number, (rate, want) in enumerate(zip([step.lr, *used], [expected[0], *expected], strict=False)):
            if abs(rate - want) > 1e-3 * max(abs(want), 1e-12):
                which = f"the learning rate of group {number - 1}" if number else "the learning rate"
                evidence = f"at step {step.step} {which} is {short(rate)}, and the schedule gives {short(want)}"
                cause = "something else sets the rate, or the schedule counts other steps"
                change = "set the rate of every group from the schedule, once in each update"
                yield self.finding("train.schedule", evidence, cause, change)
                return

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        if replayed.divergence is not None or self._miscounted:
            return  # which `model_differs` reports, or other batches
        if replayed.loss_differs:
            yield self._loss(replayed)
        elif wrong := replayed.wrong_gradients:
            whole = len(wrong) >= 0.9 * len(replayed.changes)
            yield self._gradient(replayed, wrong) if whole else self._some_gradients(replayed, wrong)
        elif replayed.clipping_differs:
            (got, want), clip = replayed.lengths, self.run.experiment.train.clip
            evidence = f"a gradient of norm {replayed.expected.norm:.3g} has {got:.3g} in the update, and {want:.3g}"
            cause = "gradients are clipped to another norm, or not at all"
            change = "clip the norm of the whole gradient once, before the update"
            yield self.finding("train.clip", f"{evidence} with clip {clip}", cause, change)
        elif abs(replayed.step.lr - replayed.expected.lr) <= 1e-3 * abs(replayed.expected.lr):
            yield from self._update(replayed, replayed.wrong_updates())

    def _loss(self, replayed: ReplayedStep) -> Finding:
        got, want, accumulate = replayed.step.loss, replayed.expected.loss, self.run.experiment.train.accumulate
        ratio = got / want if want else math.inf
        evidence = f"it is {got:.4g}, and {want:.4g} for batch {replayed.position} by the task of the config"
        cause = "other batches, other targets or another loss than the config's: some targets count twice or not at all"
        if accumulate > 1 and min(abs(ratio - accumulate), abs(ratio * accumulate - 1)) < CLOSE * accumulate:
            cause = "micro-batches are added where they should be averaged, or averaged twice"
        elif ratio > 10:
            cause = "losses are added over targets where they should be averaged"
        change = "check the loss function, its reduction and the batches that it gets: every target counts once"
        return self.finding("the loss", f"{evidence} ({ratio:.3g} times)", cause, change)

    def _gradient(self, replayed: ReplayedStep, wrong: list[str]) -> Finding:
        """All parameters have another gradient."""
        changes, accumulate = [replayed.changes[name] for name in wrong], self.run.experiment.train.accumulate
        lost = sum(int(((c.gradient == 0) & (c.expected_gradient != 0)).sum()) for c in changes)
        lost /= max(sum(c.gradient.numel() for c in changes), 1)
        if sum(map(stale, changes)) > len(changes) / 2:
            evidence = "it is the right one plus that of the step before"
            cause = "gradients are not zero before the step: those of earlier batches stay in it"
            change = "call zero_grad before the first backward of every step"
        elif (ratio := common_ratio(replayed, changes)) is not None:
            evidence = f"all of it is {ratio:.3g} times the right one (norm {replayed.step.norm:.3g})"
            cause = "the loss is scaled before the backward pass: divided by another number of micro-batches or targets"
            change = "divide by the number of targets of the whole update"
        elif lost > LOST:
            evidence = f"{lost:.0%} of its elements are exactly zero, and should not be"
            cause = "gradients are rounded to zero: they are too small for a 16-bit format that they pass through"
            change = "scale the loss up before the backward pass and the gradients down after it, in float32"
        else:
            apart = max(difference(change.gradient, change.expected_gradient) for change in changes)
            evidence = f"it differs by {apart:.2g} of its size, with the same loss"
            cause = "something changes gradients between the backward pass and the update"
            if accumulate > 1:
                cause = f"the {accumulate} micro-batches do not count equally, or something changes gradients"
            change = "look at what runs between backward and step"
        return self.finding("the gradient", evidence, cause, change)

    def _some_gradients(self, replayed: ReplayedStep, wrong: list[str]) -> Finding:
        """A part of the parameters has another gradient."""
        first = replayed.changes[wrong[-1]]  # the nearest to the loss: an error passes on to the layers before it
        ratio, zero = common_ratio(replayed, [first]), not first.gradient.any()
        how = "zero" if zero else "another one" if ratio is None else f"{ratio:.3g} times the right one"
        names = f"{', '.join(wrong[: -NAMED - 1 : -1])} ({len(wrong)} of {len(replayed.changes)})"
        cause = "a hook on the parameter or on a module's backward pass changes it, or it is cut off from the loss"
        if ratio is not None and ratio < 0:
            cause = "its sign is reversed: a hook, or a backward pass with the wrong sign"
        change = "remove the hook, or correct the backward pass"
        return self.finding(wrong[-1], f"the gradient of {names} is {how}", cause, change)

    def _update(self, replayed: ReplayedStep, wrong: list[str]) -> Findings:
        if wrong:
            change = max((replayed.changes[name] for name in wrong), key=lambda one: float(one.expected_update.norm()))
            where = "train.optimizer" if len(wrong) > len(replayed.changes) / 2 else wrong[0]
            some = f"of {', '.join(wrong[:NAMED])} ({len(wrong)} of {len(replayed.changes)})"
            evidence, cause = explain_update(change)
            fix = "compare the optimizer's settings and groups with --train.optimizer; step once in each update"
            yield self.finding(where, f"the update {some} {evidence}", cause, fix)


def common_ratio(replayed: ReplayedStep, changes: list[ParameterChange]) -> float | None:
    """The factor between the gradients and the expected ones before clipping, if it is one factor."""
    got = torch.cat([c.gradient.flatten() for c in changes])
    want = torch.cat([c.expected_gradient.flatten() for c in changes])
    ratio, (ours, theirs) = projection(got, want), replayed.scales
    alike = all(difference(c.gradient, ratio * c.expected_gradient) < CLOSE for c in changes)
    return ratio * ours / theirs if alike and ratio else None


def stale(change: ParameterChange) -> bool:
    """Whether the gradient of the step before is in this one, which clipping may have scaled."""
    if change.earlier is None or not change.earlier.any():
        return False
    basis = torch.stack([change.expected_gradient.flatten(), change.earlier.flatten()]).double()
    got = change.gradient.flatten().double()
    weights = torch.linalg.lstsq(basis.T, got[:, None]).solution.flatten()
    return difference(got, weights @ basis) < 0.05 and abs(float(weights[1])) > CLOSE


def explain_update(change: ParameterChange) -> tuple[str, str]:
    """Evidence and cause of an update that is not the expected one."""
    got, want, weight = change.update, change.expected_update, change.weight
    if not got.any():
        return "is zero", "the optimizer does not have them, or something puts the old weights back"
    ratio = projection(got, want)
    if difference(got, ratio * want) < CLOSE:
        if ratio < 0:
            return f"is {ratio:.3g} times the expected one", "its sign is reversed: the update raises the loss"
        return f"is {ratio:.3g} times the expected one", "another learning rate for them, or more than one step"
    shrunk = projection(got - want, weight)
    if difference(got - want, shrunk * weight) < 0.1:
        return f"also multiplies the weights by {1 + shrunk:.4g}", "another weight decay than the configured one"
    return f"differs by {difference(got, want):.2g}", "other betas, momentum or epsilon, or a write to the weights"
