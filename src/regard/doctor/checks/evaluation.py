"""Evaluation that is not one: modules in the wrong mode, random outputs, a loss of other text or other weights."""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile
from types import CodeType

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from regard.doctor import Check, Findings, History, ModelPass, TrainingRun
from regard.doctor.calls import difference, projection, record_calls
from regard.doctor.model_pass import first_rows
from regard.doctor.modes import isolated
from regard.doctor.schedule import FREE_PASSED, PASSED, sampled
from regard.look import evaluation_mode
from regard.tasks import LanguageConfig
from regard.train import TrainingStep
from regard.train.device import move

#: Between two outputs, relative to them, and nats between two validation losses of the same weights.
APART = 1e-3
SCALED = 0.15  # between the outputs of a module in the two modes: chance gives a few percent


class WrongMode(Check):
    kind, description = "wrong_mode", "modules are in the wrong mode"
    rank = 0

    def on_step(self, step: TrainingStep) -> Findings:
        if sampled(step.step):
            yield from self._judge(training=True)

    def on_evaluating(self) -> Findings:
        yield from self._judge(training=False)

    def _judge(self, training: bool) -> Findings:
        if self.run.model is None:
            return
        modules = list(self.run.model.named_modules())
        wrong = [name or "the model" for name, m in modules if m.training != training]
        self.run.wrong_mode = not training and any(matters(m) for _, m in modules if m.training != training)
        if wrong:
            mode, other = ("training", "evaluation") if training else ("evaluation", "training")
            evidence = f"during {mode}, {len(wrong)} modules are in {other} mode: {', '.join(wrong[:3])}"
            effect = "dropout is off while the model learns" if training else "dropout acts on the validation loss"
            cause = f"model.train() and model.eval() are not called in turn, or not for all modules: {effect}"
            yield self.finding(wrong[0], evidence, cause, f"call model.{'train' if training else 'eval'}() before it")


def matters(module: nn.Module) -> bool:
    """Whether the output of a module, without its children, depends on its mode."""
    bases = (base for base in type(module).__mro__ if not base.__module__.startswith("regard.nn.fused"))  # fast paths
    codes = (getattr(one, "__code__", None) for base in bases for one in vars(base).values())
    if base_reads(codes) and not getattr(module, "carries_state", False):
        rates = [getattr(module, name) for name in ("p", "dropout", "checkpointing") if hasattr(module, name)]
        return not rates or any(rates)  # all of them zero: it reads its mode, and nothing follows from it
    return getattr(module, "carries_state", False)


def base_reads(codes: Iterable[CodeType | None]) -> bool:
    """Whether a function other than those of ``nn.Module`` reads ``training``."""
    own = {nn.Module.train.__code__, nn.Module.eval.__code__, nn.Module.__init__.__code__}
    return any("training" in code.co_names for code in codes if code is not None and code not in own)


class RandomNumbers(Check):
    """Evaluation must not depend on random numbers, and training must where the config has dropout."""

    kind, description = "random_numbers", "random numbers act where they should not, or do not where they should"
    rank = 0

    def on_start(self) -> Findings:
        run, rate = self.run, self.run.settings["model"].get("dropout", 0.0)
        if run.replay is None or run.model is None or run.data is None or not isinstance(rate, float) or not rate:
            return
        batch = run.batch(run.position)
        if run.model.carries_state or not run.usable(batch):
            return
        batch = move(first_rows(batch, 2), run.device)  # a contrastive loss needs two rows
        if run.replay.total(run.model, batch, True, (0, 0)) == run.replay.total(run.model, batch, True, (1, 0)):
            evidence = f"other random numbers give the same loss in training mode, and dropout is {rate}"
            cause = "dropout modules are in evaluation mode, were replaced, are never called, or get one seed"
            change = "call model.train() before a step; use the config's rate; do not seed in the model"
            yield self.finding("model.dropout", evidence, cause, change)

    def on_pass(self, model_pass: ModelPass) -> Findings:
        if not model_pass.deep:
            return
        with isolated(self.run.device):
            torch.manual_seed(model_pass.number + 1)
            again = record_calls(model_pass.model, lambda: model_pass.total(model_pass.common_batch))
        for one, other in zip(model_pass.common[1], again, strict=False):
            if not torch.equal(one.output, other.output) and (apart := difference(one.output, other.output)) > APART:
                evidence = f"two passes in evaluation mode over the same tokens differ, first here, by {apart:.2g}"
                cause = "dropout or noise is on in evaluation mode, or the output depends on earlier calls"
                change = "make it depend on self.training, and keep no state between calls"
                yield self.finding(one.name, evidence, cause, change)
                return
        if not model_pass.model.carries_state:
            yield from self._mean(model_pass)

    def _mean(self, model_pass: ModelPass) -> Findings:
        """The first module that differs between the modes must have the same output in the mean."""
        modes = (False, True)
        calls = [record_calls(model_pass.model, lambda t=t: model_pass.total(model_pass.few, t)) for t in modes]
        pairs = zip(*calls, strict=False)
        first = next(((one, other) for one, other in pairs if not torch.equal(one.output, other.output)), None)
        if first is None or any(True for _ in first[0].module.buffers()):
            return  # running statistics, as those of a batch norm
        if first[0].output.shape != first[1].output.shape:
            return  # experts, whose capacity is limited in training only
        before = takewhile(lambda call: call.name != first[0].name, calls[0])
        if not any(True for call in before for _ in call.module.parameters(recurse=False)):
            return  # a mask of the inputs, as of the frequencies of a sound, which keeps their scale
        scale = projection(first[1].output, first[0].output)
        if abs(scale - 1) > SCALED:
            evidence = f"in training its output is {scale:.2g} times that in evaluation, in the mean"
            cause = "dropout that does not divide what it keeps by 1 - p, or a branch on self.training"
            yield self.finding(first[0].name, evidence, cause, "use nn.Dropout, or scale by 1 / (1 - p)")


class ValidationLoss(Check):
    kind, description = "validation_loss", "the validation loss is not that of the weights"
    rank = 0
    follows = ("model_differs", "step_differs", "random_numbers", "target_fault")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._done = False
        self._hooks: list[RemovableHandle] = []  # until a module of the trained model is called after the first batch

    def on_evaluating(self) -> Findings:
        run, compiled = self.run, self.run.experiment.train.compile in (True, "graphs")
        if run.model is not None and run.data is not None and run.device.type == "cpu" and not compiled:
            first = next(iter(run.experiment.validation_batches(run.data)))
            count = float(next(iter(run.task.counts(first).values())))
            if run.data.validation_count is not None and run.data.validation_count > 2 * max(count, 1.0):
                self._hooks = [module.register_forward_pre_hook(self._called) for module in run.model.modules()]
        return ()

    def _called(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def on_evaluation(self, history: History) -> Findings:
        run, replay = self.run, self.run.replay
        if self._hooks:
            self._called()
            evidence = "the trained model is not called during the evaluation"
            cause = "another model is evaluated: a copy, or an average of earlier weights"
            change = "evaluate the trained model; let an average of weights follow within a tenth of the run"
            yield self.finding("validation", evidence, cause, change)
            return
        size = run.data.validation_count if run.data is not None else None
        if replay is None or run.data is None or size is None or not history.validation:
            return
        if run.wrong_mode:
            return  # which explains another loss, and `wrong_mode` reports it
        if self._done or size > max(FREE_PASSED, PASSED * run.tokens):
            return
        self._done = True
        replay.synchronize()
        reported, weights = history.validation[-1][1], dict[str, float]()
        sums, counts = defaultdict[str, float](float), defaultdict[str, float](float)
        with evaluation_mode(replay.engine.model):
            for batch in run.experiment.validation_batches(run.data):
                for name, term in run.terms_of(replay.engine.model, move(batch, run.device)).items():
                    sums[name] += float(term.total)
                    counts[name] += float(term.count)
                    weights[name] = term.weight
        loss = sum(weight * sums[name] / max(counts[name], 1.0) for name, weight in weights.items())
        yield from self._judge(reported, loss, next(iter(counts.values()), 0.0), size)

    @property
    def _whole(self) -> bool:
        """Whether the run evaluates the whole validation part."""
        return self.run.data is not None and self.run.experiment.validation_stride(self.run.data) == 1

    def _judge(self, reported: float, loss: float, counted: float, size: int) -> Findings:
        change = "evaluate the present weights in evaluation mode on the whole validation part, each target once"
        apart = APART if self.run.dtype == torch.float32 else 20 * APART
        if math.isfinite(loss) and abs(reported - loss) > apart * max(1.0, loss):
            evidence = f"{reported:.4f} is reported, and the config's model has {loss:.4f} with the same weights"
            cause = "it is measured in training mode, with other weights, on other text or with another average"
            yield self.finding("validation", evidence, cause, change)
        elif counted != size and self._whole and isinstance(self.run.experiment.task, LanguageConfig):
            evidence = f"{counted:,.0f} targets are evaluated, and the validation part has {size:,}"
            cause = "a part of the validation text is left out or counted twice"
            yield self.finding("validation", evidence, cause, change)
