"""Layers whose output is not what their formula gives for the same input and weights.

A replay compares a run with a model of the same classes, so it cannot see a fault in a class. Here each call of a
layer is computed a second time from its inputs: linear layers, embeddings, norms, feed-forward networks, attention,
and the sums of residual blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Softmax
from regard.attention.call import allowed, dense_pairs, repeat_kv
from regard.attention.normalizer import SoftmaxNormalizer
from regard.attention.score import Dot
from regard.doctor import Check, Findings, ModelPass, TrainingRun
from regard.doctor.calls import ModuleCall, describe, difference, record_calls
from regard.look.capture.observe import Attention, observe
from regard.models import Model
from regard.nn.blocks.block import Block, Gated, NoResidual, Parallel, PostNorm, PreNorm, Sandwich
from regard.nn.feedforward import FeedForward, GatedFeedForward
from regard.nn.norm import LayerNorm, RMSNorm

#: The activations of feed-forward networks by the name in the config, as PyTorch defines them.
FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: F.relu(x) ** 2,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "reglu": F.relu,
    "glu": torch.sigmoid,
    "bilinear": lambda x: x,
}
KEYS = 256  # more keys than this are not computed a second time
Calls = Mapping[str, ModuleCall]  # of modules that were called once, by name


class Computed(NamedTuple):
    """A tensor of a pass, and what the formula gives."""

    where: str
    formula: str
    got: Tensor
    want: Tensor


class WrongFormula(Check):
    kind, description = "wrong_formula", "a layer does not compute its formula"
    rank = 0
    follows = ("model_differs", "random_numbers")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._done = False  # a class computes the same in every step

    @torch.no_grad()
    def on_pass(self, model_pass: ModelPass) -> Findings:
        if not model_pass.deep or self._done:
            return
        self._done = True
        calls = once(model_pass.calls)
        computed = [*layers(calls, feedforward_kinds(model_pass.model)), *blocks(calls), *attention(model_pass)]
        for one in computed:
            got, want = one.got.float(), one.want.float()
            apart = difference(got, want)
            if apart > model_pass.rounding and bool(got.isfinite().all()):
                call = ModuleCall(one.where, nn.Identity(), (), got)
                evidence = f"{describe(call, call._replace(output=want))}: it differs by {apart:.2g} from {one.formula}"
                cause = "its forward pass computes something else: another axis, a missing term, scale or residual path"
                yield self.finding(one.where, evidence, cause, f"compare the code of {one.where} with {one.formula}")
                return


def feedforward_kinds(model: Model) -> dict[str, str]:
    """The kind of feed-forward network of the model's config, and of those of the models that it has parts of."""
    models = {name: part for name, part in model.named_modules() if isinstance(part, Model)}
    return {name: getattr(getattr(part.config, "feedforward", None), "kind", "") for name, part in models.items()}


def once(calls: list[ModuleCall]) -> Calls:
    """The calls of modules that were called once."""
    names = [call.name for call in calls]
    return {call.name: call for call in calls if names.count(call.name) == 1}


def layers(calls: Calls, kinds: Mapping[str, str]) -> Iterator[Computed]:
    """Single layers, from their inputs and weights. ``kinds``: of feed-forward networks, by the name of their model."""
    for name, (_, module, inputs, output) in calls.items():
        x = inputs[0] if inputs else None
        if x is None:
            continue
        if isinstance(module, nn.Linear) and {n for n, _ in module.named_parameters()} <= {"weight", "bias"}:
            yield Computed(name, "x Wᵀ + b", output, F.linear(x.to(module.weight.dtype), module.weight, module.bias))
        elif isinstance(module, nn.Embedding) and len(list(module.parameters())) == 1:
            yield Computed(name, "the rows of its weight", output, module.weight[x])
        elif isinstance(module, LayerNorm):
            mean, variance = x.float().mean(-1, keepdim=True), x.float().var(-1, keepdim=True, unbiased=False)
            normed = (x.float() - mean) / (variance + module.eps).sqrt() * module.gain
            bias = 0 if module.bias is None else module.bias
            yield Computed(name, "(x - mean) / std · gain + bias of each token", output, normed + bias)
        elif isinstance(module, RMSNorm):
            size = (x.float().square().mean(-1, keepdim=True) + module.eps).sqrt()
            yield Computed(name, "x / rms(x) · gain of each token", output, x.float() / size * module.gain)
        elif isinstance(module, nn.Dropout | nn.Identity):
            yield Computed(name, "its input, in evaluation mode", output, x)
        elif isinstance(module, FeedForward | GatedFeedForward):
            owner = max((one for one in kinds if not one or name.startswith(f"{one}.")), key=len)
            if kinds[owner] in FORMULAS:
                yield from _feedforward(name, module, calls, FORMULAS[kinds[owner]])


def _feedforward(
    name: str, module: nn.Module, calls: Calls, activation: Callable[[Tensor], Tensor]
) -> Iterator[Computed]:
    gated = isinstance(module, GatedFeedForward)
    up, down = calls.get(f"{name}.{'gate_up' if gated else 'up'}"), calls.get(f"{name}.down")
    if up is None or down is None or not down.inputs:
        return
    if gated:
        gate, rest = up.output.chunk(2, dim=-1)
        yield Computed(name, "down(activation(gate(x)) ⊙ up(x))", down.inputs[0], activation(gate) * rest)
    else:
        yield Computed(name, "down(activation(up(x)))", down.inputs[0], activation(up.output))
    yield Computed(name, "the output of its last matrix", calls[name].output, down.output)


def blocks(calls: Calls) -> Iterator[Computed]:
    """The sums of residual blocks, from the outputs of their parts."""
    for name, (_, module, inputs, output) in calls.items():
        if not isinstance(module, Block) or not inputs:
            continue
        parts = ("attention", "cross", "feedforward") if module.cross is not None else ("attention", "feedforward")
        if isinstance(module, Gated) and module.cross is not None:
            parts = ("cross", "dense", "attention", "feedforward")
        names = [f"{name}.{part}" for part in parts] + [f"{name}.norm_{part}" for part in parts]
        names += [f"{name}.after_{part}" for part in parts] if isinstance(module, Sandwich) else []
        if all(one in calls and calls[one].inputs for one in names):
            yield from _block(name, module, parts, calls, inputs[0], output)


def _block(
    name: str, module: Block, parts: tuple[str, ...], calls: Calls, x: Tensor, output: Tensor
) -> Iterator[Computed]:
    kind = type(module)
    read = {part: calls[f"{name}.{part}"].inputs[0] for part in parts}
    made = {part: calls[f"{name}.{part}"].output for part in parts}
    norms = {part: calls[f"{name}.norm_{part}"] for part in parts}
    if isinstance(module, Gated) and module.cross is not None:
        made |= {part: made[part] * gate for part, gate in zip(("cross", "dense"), module.gates.tanh(), strict=True)}
    if issubclass(kind, PreNorm | Sandwich):
        for part in parts:
            yield Computed(
                f"{name}.norm_{part}", "x + f(norm(x)): the norm reads the sum so far", norms[part].inputs[0], x
            )
            yield Computed(
                f"{name}.{part}", "x + f(norm(x)): f reads what the norm makes", read[part], norms[part].output
            )
            x = x + (calls[f"{name}.after_{part}"].output if issubclass(kind, Sandwich) else made[part])
        yield Computed(name, "x + f(norm(x))", output, x)
    elif issubclass(kind, PostNorm):
        for part in parts:
            yield Computed(f"{name}.{part}", "norm(x + f(x)): f reads x", read[part], x)
            yield Computed(f"{name}.norm_{part}", "norm(x + f(x))", norms[part].inputs[0], x + made[part])
            x = norms[part].output
        yield Computed(name, "norm(x + f(x))", output, x)
    elif issubclass(kind, Parallel):
        for part in parts:
            yield Computed(f"{name}.{part}", "f reads norm(x)", read[part], norms["attention"].output)
        yield Computed(name, "x + attention(norm(x)) + feedforward(norm(x))", output, sum(made.values(), start=x))
    elif issubclass(kind, NoResidual):
        yield Computed(name, "f(norm(x))", output, made[parts[-1]])


def attention(model_pass: ModelPass) -> Iterator[Computed]:
    """Softmax attention with dot products, from queries, keys, values and mask."""
    calls: list[ModuleCall] = []

    def forward() -> None:
        calls.extend(record_calls(model_pass.model, lambda: model_pass.run.terms(model_pass.few)))

    seen, _ = observe(model_pass.model, forward, values=True)
    outputs = once(calls)
    for one in seen:
        mechanism, scores = one.mechanism, getattr(one.mechanism, "score", None)
        plain = isinstance(mechanism, Softmax) and isinstance(scores, Dot)
        if not plain or one.name not in outputs or one.k.shape[2] > KEYS or one.spilled is not None:
            continue
        assert isinstance(mechanism, Softmax)
        if isinstance(mechanism.normalizer, SoftmaxNormalizer) and mechanism.scale is None:
            want = mixed(one, mechanism)
            yield Computed(
                one.name, "softmax(q·k/√d + bias) v over the keys of its mask", outputs[one.name].output, want
            )


def mixed(one: Attention, mechanism: Softmax) -> Tensor:
    """softmax(q·k/√d + bias) v (Vaswani et al. 2017, eq. 1), zero where a query sees no key."""
    assert one.v is not None
    assert isinstance(mechanism.normalizer, SoftmaxNormalizer)
    q, k, v = one.q.float(), repeat_kv(one.k, one.heads).float(), repeat_kv(one.v, one.heads).float()
    pairs = dense_pairs(one.plan, q)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    for bias in (mechanism.bias, one.plan.bias):
        scores = scores if bias is None else bias.adjust(scores, pairs)
    visible = allowed(one.plan.mask, pairs).expand(scores.shape)
    scores = (scores / mechanism.normalizer.temperature).masked_fill(~visible, -torch.inf)
    return torch.einsum("bhqk,bhke->bhqe", scores.softmax(-1).nan_to_num(), v)
