"""A model that is not the one its config describes: other weights at the start, other outputs, ties that are broken."""

from collections import defaultdict

import torch
from torch import nn

from regard.doctor import Check, Findings, SidePass, TrainingRun
from regard.doctor.replay import Divergence, Replay, ReplayedStep, difference

NAMED = 3  # parameters that a finding names


class InitialWeights(Check):
    kind, description = "initial_weights", "weights do not start as config and seed give them"
    rank = 0

    def on_start(self) -> Findings:
        replay = self.run.replay
        if replay is None or self.run.position or replay.loaded:
            return
        same = [one for one in replay.parameters.items() if one[1][0].shape == one[1][1].shape]
        wrong = [(name, p, fresh) for name, (p, fresh) in same if not torch.equal(p, fresh)]
        if len(wrong) > len(replay.parameters) / 2:
            return  # weights that were trained before
        for name, p, fresh in wrong[:NAMED]:
            sizes = f"their norm is {float(p.detach().norm()):.3g}, not {float(fresh.detach().norm()):.3g}"
            evidence = f"before any step they are {difference(p.detach(), fresh.detach()):.2g} from those; {sizes}"
            cause = "something sets them after the model is built: another initialization, a partial load, a mask"
            yield self.finding(name, evidence, cause, "remove what writes to them before the first step")


class ModelDiffers(Check):
    kind, description = "model_differs", "a module does not compute what the config describes"
    rank = 0
    follows = ("tied_weights",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._found = False

    def on_start(self) -> Findings:
        other = [] if self.run.replay is None else other_parameters(self.run.replay)
        if other:
            self.run.replay = None  # the two cannot be compared
            evidence = f"{len(other)} parameters are new, missing or of another shape: {', '.join(other[:NAMED])}"
            cause = "modules were replaced, added or removed after the model was built"
            yield self.finding(other[0], evidence, cause, "describe the model in its config, or change its class")

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        yield from self._report(replayed.divergence, "training")

    def on_model(self, side_pass: SidePass) -> Findings:
        if self.run.replay is not None and side_pass.deep and not self._found:
            yield from self._report(self.run.replay.divergence(side_pass.few, False), "evaluation")

    def _report(self, found: Divergence | None, mode: str) -> Findings:
        if found is None:
            return
        self._found = True
        evidence = (
            f"{found.what}; built from the config, with the same weights, it differs by {found.size:.2g} in {mode}"
        )
        cause = "a hook, a replaced method or attribute, a module in the wrong mode, or an edit after it was built"
        yield self.finding(found.where, evidence, cause, f"compare {found.where} with the class that the config names")


def other_parameters(replay: Replay) -> list[str]:
    """The names of parameters that only one of the two models has, or with another shape."""
    models = (replay.model, replay.engine.model)
    own, built = ({n: p.shape for n, p in m.named_parameters(remove_duplicate=False)} for m in models)
    return [name for name in {**own, **built} if own.get(name) != built.get(name)]


class TiedWeights(Check):
    kind, description = "tied_weights", "weights that should be one are two"
    rank = 0

    def on_start(self) -> Findings:
        replay = self.run.replay
        if replay is None or self.run.model is None:
            return
        own = dict(self.run.model.named_parameters(remove_duplicate=False))
        for names in tied(replay.engine.model):
            if len({id(own[name]) for name in names if name in own}) > 1:
                evidence = f"{' and '.join(names)} are two tensors, and one in the model that the config describes"
                cause = "one of them was replaced or copied after they were tied, so each learns by itself"
                change = f"assign one parameter to both: {names[0]} and {names[1]}"
                yield self.finding(names[1], evidence, cause, change)

    def on_model(self, side_pass: SidePass) -> Findings:
        yield from self.on_start()


def tied(model: nn.Module) -> list[list[str]]:
    """The names of parameters that are the same tensor."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [same for same in names.values() if len(same) > 1]


class UnoptimizedParameters(Check):
    kind, description = "unoptimized_parameters", "the optimizer does not have all parameters once"
    rank = 0

    def on_start(self) -> Findings:
        model, optimizer = self.run.model, self.run.optimizer
        if model is None or optimizer is None:
            return
        given = [id(p) for group in optimizer.groups for p in group["params"]]
        change = "make the optimizer from all of model.parameters(), after the model is complete"
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        frozen = frozen if self.run.experiment.train.adapt.kind == "full" else []
        missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in given]
        for names, what, cause in (
            (missing, "not given to the optimizer", "the optimizer was made from a part of the parameters or before"),
            (frozen, "frozen: requires_grad is off", "something froze them, and the config does not ask for it"),
        ):
            if names:
                evidence = f"{len(names)} parameters are {what}: {', '.join(names[:NAMED])}"
                yield self.finding(names[0], evidence, cause, change)
        known = {id(p) for p in model.parameters()}
        foreign = sum(one not in known for one in given)
        if foreign or len(set(given)) < len(given):
            evidence = (
                f"{foreign} tensors of the optimizer are not in the model, {len(given) - len(set(given))} are twice"
            )
            cause = "parameters were replaced after the optimizer was made, or are in two groups"
            yield self.finding("the optimizer", evidence, cause, change)
