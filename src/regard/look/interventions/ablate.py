"""Ablation of heads: the output of a head is set to zero, and the loss and the generated text are compared.

This shows the effect of a head, which its map alone does not (Jain & Wallace 2019, "Attention is not explanation";
Michel et al. 2019). A head's output is zeroed at the input of the layer's output projection, also in decoding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from regard.attention import Out
from regard.errors import UserError
from regard.generate.sampling import in_float32
from regard.look.capture.observe import Attention, dense_weights, evaluation_mode, observe
from regard.look.views.reading import Reading, compare_losses, mean
from regard.models.base import Model
from regard.nn.attention import CrossAttention, SelfAttention
from regard.runs.disk import JsonObject

BUDGET = 5e10  # multiplications and additions, in pairs, spent on the effects of all heads: about a second
RECENT = 8  # tokens back
KINDS = 6  # of keys, at most


@contextmanager
def ablated(model: Model, attentions: Sequence[Attention], heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """The model without these (attention, head) of the ``attentions`` of a forward pass; restored on exit."""
    names = [one.name for one in attentions]
    chosen: dict[str, dict[int, list[int]]] = {}  # by module and call, since a block may be repeated: the heads
    for attention, head in heads:
        if not 0 <= attention < len(names):
            raise UserError(f"there is no attention {attention}: this model has 0 to {len(names) - 1}")
        if not 0 <= head < (count := attentions[attention].heads):
            raise UserError(f"attention {attention} has the heads 0 to {count - 1}, not {head}")
        name = names[attention]
        chosen.setdefault(name, {}).setdefault(names[:attention].count(name), []).append(head)
    with ExitStack() as hooks:
        for name, by_call in chosen.items():
            count = attentions[names.index(name)].heads
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, SelfAttention | CrossAttention):
                hook = layer.out.register_forward_pre_hook(_zero_inputs(by_call, names.count(name), count))
            else:  # a recurrent decoder uses the attention's output in several places
                hook = model.get_submodule(name).register_forward_hook(_zero_outputs(by_call.get(0, [])))
            hooks.callback(hook.remove)
        yield


def _zero_inputs(by_call: dict[int, list[int]], calls: int, heads: int) -> Callable[..., tuple[Tensor]]:
    done = 0

    def zero(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal done
        zeroed, done = by_call.get(done % calls, []), done + 1
        parts = inputs[0].unflatten(-1, (heads, -1)).clone()
        parts[..., zeroed, :] = 0
        return (parts.flatten(-2),)

    return zero


def _zero_outputs(heads: list[int]) -> Callable[..., Out]:
    def zero(_: nn.Module, __: object, out: Out) -> Out:
        values = out.values.clone()
        values[:, heads] = 0
        return out._replace(values=values)

    return zero


def head_effects(model: Model, reading: Reading, attentions: Sequence[Attention]) -> list[list[dict[str, float]]]:
    """By attention and head, the increase of the mean loss in nats without the head ("head") and without its attention
    to one kind of key (`role_keys`); [] if that takes too many operations.
    """
    passes = sum(one.heads for one in attentions) * (1 + KINDS)
    if passes * sum(p.numel() for p in model.parameters()) * reading.inputs.shape[1] > BUDGET:
        return []

    def loss() -> float:
        return mean(reading.losses(model, reading.features(model))) or 0.0

    def effects(number: int, head: int) -> dict[str, float]:
        with ablated(model, attentions, [(number, head)]):
            found = {"head": loss() - before}
        one = attentions[number].load()
        layer = model.get_submodule(one.name.rpartition(".")[0])
        again = sum(other.name == one.name for other in attentions) > 1  # a repeated block
        if (
            one.unobservable is not None
            or one.mechanism.recurrent  # its weights are means over channels, and a gate may follow
            or one.v is None
            or again
            or not isinstance(layer, SelfAttention | CrossAttention)
        ):
            return found
        encodes = reading.source is not None and one.name.startswith("encoder")
        tokens = reading.source_batch[0] if encodes else reading.inputs
        lengths = one.plan.queries.length, one.plan.keys.length
        keys = role_keys(tokens[0]) if one.plan.same_tokens else cross_role_keys(*lengths, tokens.device)
        weights, values = dense_weights(one)[0, head], in_float32(one.v[0, head * one.v.shape[1] // one.heads])
        for name, chosen in keys.items():
            hook = layer.out.register_forward_pre_hook(_less((weights * chosen) @ values, head, one.heads))
            try:
                found[name] = loss() - before
            finally:
                hook.remove()
        return found

    with evaluation_mode(model):
        before = loss()
        return [[effects(number, head) for head in range(one.heads)] for number, one in enumerate(attentions)]


def role_keys(tokens: Tensor) -> dict[str, Tensor]:
    """Which keys each role attends to, [N, N]; see `regard.look.statistics.measures`."""
    place = torch.arange(len(tokens), device=tokens.device)
    back = place[:, None] - place
    same = (tokens[:, None] == tokens) & (back > 0)
    return {
        "previous": back == 1,
        "self": back == 0,
        "sink": (place == 0) & (back > 1),
        "induction": same.roll(1, 1) & (back >= 0) & (place > 0),
        "duplicate": same,
        "recent": (back > 1) & (back <= RECENT),
    }


def cross_role_keys(queries: int, keys: int, device: torch.device) -> dict[str, Tensor]:
    """The same for cross-attention, [Q, K]: the first and the last key, and those at the same relative position."""
    place = torch.arange(keys, device=device)
    diagonal = torch.arange(queries, device=device)[:, None] * ((keys - 1) / max(1, queries - 1))
    first, last = (place == 0).expand(queries, -1), (place == keys - 1).expand(queries, -1)
    return {"sink": first, "end": last, "diagonal": (place - diagonal).abs() <= 1}


def _less(part: Tensor, head: int, heads: int) -> Callable[..., tuple[Tensor]]:
    """Subtracts ``part`` [N, D] from a head's output."""

    def subtract(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        parts = inputs[0].unflatten(-1, (heads, -1)).clone()
        parts[..., head, :] -= part.to(parts.dtype)
        return (parts.flatten(-2),)

    return subtract


def ablate(
    model: Model, reading: Reading, heads: Sequence[tuple[int, int]], generate: Callable[[], str | None]
) -> JsonObject:
    """The loss of each token and the generated text, before and after."""
    attentions, features = observe(model, lambda: reading.features(model))
    with evaluation_mode(model):
        before, text = reading.losses(model, features), generate()
        with ablated(model, attentions, heads):
            after, other = reading.losses(model, reading.features(model)), generate()
    return {**compare_losses(before, after), "text": {"before": text, "after": other}}
