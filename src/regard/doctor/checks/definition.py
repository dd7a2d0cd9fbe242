"""A model that is not the one its config describes: other weights at the start, other outputs, ties that are broken."""

from collections import defaultdict
from contextlib import suppress

import torch
from torch import Tensor, nn

from regard.doctor import Check, Findings, ModelPass, TrainingRun
from regard.doctor.calls import difference
from regard.doctor.replay import Divergence, Replay, ReplayedStep
from regard.errors import UserError
from regard.train.pretrained import pretrained

NAMED = 3  # parameters that a finding names
READ = 2**25  # numbers of a trained model that are read a second time
LOADED = 0.2  # relative: quantized and merged matrices are nearer to those that were loaded


class ModelDiffers(Check):
    kind, description = "model_differs", "the model is not what the config describes"
    rank = 0
    follows = ("random_numbers", "foreign_writes")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._found = False

    def on_start(self) -> Findings:
        replay = self.run.replay
        if replay is None:
            return
        if other := other_parameters(replay):
            self.run.replay = None  # the two cannot be compared
            evidence = f"{len(other)} parameters are new, missing or of another shape: {', '.join(other[:NAMED])}"
            cause = "modules were replaced, added or removed after the model was built"
            yield self.finding(other[0], evidence, cause, "describe the model in its config, or change its class")
            return
        own = dict(replay.model.named_parameters(remove_duplicate=False))
        for names in tied(replay.engine.model):
            if len({id(own[name]) for name in names}) > 1:
                self._found = True
                evidence = f"{' and '.join(names)} are two tensors, and one in the model that the config describes"
                cause = "one of them was replaced or copied after they were tied, so each learns by itself"
                yield self.finding(names[1], evidence, cause, f"assign one parameter to both: {names[0]}, {names[1]}")
        starts = self.run.experiment.init is not None  # with adapters, less than half of the weights may be
        if not (self.run.position or replay.loaded or starts):
            yield from self._initial(replay)
        elif starts and not self.run.position:
            yield from self._loaded(replay.model)
        yield from self._resumed()

    def _loaded(self, model: nn.Module) -> Findings:
        """Weights that are not those of the trained model that the run starts from."""
        name = str(self.run.experiment.init)
        own = {key.replace(".base.", "."): value for key, value in model.state_dict().items()}
        if sum(value.numel() for value in own.values()) > READ:
            return
        with suppress(UserError, OSError):  # it is not there any more
            given = {key: value for key, value in pretrained(name).weights.items() if key in own}
            fits = {key: value for key, value in given.items() if value.shape == own[key].shape and value.ndim > 1}
            wrong = [
                key for key, value in fits.items() if difference(own[key].cpu(), value.to(own[key].dtype)) > LOADED
            ]
            if len(wrong) > len(fits) / 2:
                evidence = f"before any step {len(wrong)} of {len(fits)} matrices are not those of {name}, such as "
                cause = "the weights were not loaded: other names, a prefix, or strict=False; they are random"
                change = "load every tensor by its name, and refuse names that are missing (strict=True)"
                yield self.finding("the weights of --init", evidence + ", ".join(wrong[:NAMED]), cause, change)

    def _resumed(self) -> Findings:
        """Weights or moments that are not those of the checkpoint that the run was resumed from."""
        checkpoint, model, optimizer = self.run.resumed, self.run.model, self.run.optimizer
        if checkpoint is None or model is None or optimizer is None:
            return
        stored, own = {**checkpoint.model(), **checkpoint.optimizer()}, {**model.state_dict(), **optimizer.state()}
        wrong = [name for name, value in stored.items() if name not in own or not same(own[name], value)]
        if wrong:
            evidence = f"{len(wrong)} of {len(stored)} tensors are not those of the checkpoint: "
            evidence += ", ".join(wrong[:NAMED])
            if (got := own.get(wrong[0])) is not None:
                evidence += f"; the first is {difference(got.cpu(), stored[wrong[0]]):.2g} from it"
            cause = "the checkpoint was loaded in part, or something has set them afterwards: they begin again"
            change = "load every tensor of the checkpoint, and refuse names that are missing (strict=True)"
            yield self.finding(wrong[0], f"at step {checkpoint.step} {evidence}", cause, change)

    def _initial(self, replay: Replay) -> Findings:
        """Weights that do not start as config and seed give them."""
        wrong = [(name, p, fresh) for name, (p, fresh) in replay.parameters.items() if not torch.equal(p, fresh)]
        if len(wrong) > len(replay.parameters) / 2:
            return  # weights that were trained before
        for name, p, fresh in wrong[:NAMED]:
            sizes = f"their norm is {float(p.detach().norm()):.3g}, not {float(fresh.detach().norm()):.3g}"
            evidence = f"before any step they are {difference(p.detach(), fresh.detach()):.2g} from the initial ones"
            cause = "something sets them after the model is built: another initialization, a partial load, a mask"
            yield self.finding(name, f"{evidence}; {sizes}", cause, "remove what writes to them before the first step")

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        yield from self._diverged(replayed.divergence, "training")

    def on_pass(self, model_pass: ModelPass) -> Findings:
        replay = self.run.replay
        if replay is not None and model_pass.deep and not self._found:
            replay.synchronize()
            expected = replay.calls(replay.engine.model, model_pass.common_batch, training=False)
            yield from self._diverged(replay.divergence(model_pass.common, expected), "evaluation")

    def _diverged(self, found: Divergence | None, mode: str) -> Findings:
        if found is None or self._found:
            return
        self._found = True
        same = "built from the config, with the same weights, it"
        cause = "a hook, a replaced method or attribute, a module in the wrong mode, or an edit after it was built"
        evidence = f"{found.what}; {same} differs by {found.size:.2g} in {mode}"
        yield self.finding(found.where, evidence, cause, f"compare {found.where} with the class that the config names")


def other_parameters(replay: Replay) -> list[str]:
    """The names of parameters that only one of the two models has, or with another shape."""
    models = (replay.model, replay.engine.model)
    own, built = ({n: p.shape for n, p in m.named_parameters(remove_duplicate=False)} for m in models)
    return [name for name in {**own, **built} if own.get(name) != built.get(name)]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in the format of the first; NaN equals NaN."""
    one, other = one.detach().cpu(), other.to(one.dtype)
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


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
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        frozen = frozen if self.run.experiment.train.adapt.kind == "full" else []
        missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in given]
        foreign = sum(one not in {id(p) for p in model.parameters()} for one in given)
        twice = len(given) - len(set(given))
        for names, what, cause in (
            (
                missing,
                "parameters are not given to it",
                "the optimizer was made from a part of the parameters or before",
            ),
            (frozen, "parameters are frozen: requires_grad is off", "something froze them, against the config"),
            (
                ["the optimizer"] * foreign,
                "of its tensors are not in the model",
                "parameters were replaced after it was made",
            ),
            (["the optimizer"] * twice, "of its tensors are there twice", "parameters are in two groups"),
        ):
            if names:
                evidence = f"{len(names)} {what}: {', '.join(dict.fromkeys(names[:NAMED]))}"
                change = "make the optimizer from all of model.parameters(), after the model is complete"
                yield self.finding(names[0], evidence, cause, change)
