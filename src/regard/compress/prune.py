"""Pruning of heads and layers, chosen by their measured effect on the loss (Michel et al. 2019; Gromov et al. 2024).

Two kinds of parts are removed: a whole block, and one key/value head with its query heads in every block (blocks have
the same number of heads, so that the pruned model is an ordinary one with a smaller config). Single effects rank them;
then the cheaper of the best candidates, by the measured loss per removed weight, is removed until enough is gone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import GPT, GPTConfig
from regard.nn.attention import SelfAttention, SeparateConfig

CANDIDATES = 3  # blocks that are measured again in each round: effects change as others are removed
Loss = Callable[[], float]


class Removed(NamedTuple):
    """One part that was removed, and the loss after it."""

    part: str  # "block 3" or "a head of every block"
    loss: float
    weights: int  # that were removed

    def __str__(self) -> str:
        return f"{self.part}: loss {self.loss:.4f}, {self.weights:,} weights fewer"


class Kept(NamedTuple):
    """What is left of a model: the blocks, and the key/value heads of each of them."""

    blocks: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of each original block


def prune(model: GPT, fraction: float, loss: Loss, say: Callable[[str], object]) -> tuple[GPT, list[Removed]]:
    """The model without ``fraction`` of the weights of its blocks or a little more, and what was removed."""
    refuse(model, fraction)
    heads = prunable_heads(model)
    kept = Kept(tuple(range(len(model.blocks.layers))), tuple(tuple(range(heads)) for _ in model.blocks.layers))
    say("measuring single effects")
    blocks = {i: _measured(model, _without_block(kept, i), loss) for i in kept.blocks}
    groups = {
        (i, g): _measured(model, _without_group(kept, i, g), loss)
        for i in kept.blocks
        for g in kept.groups[i]
        if heads > 1
    }
    target, done, removed = fraction * _weights(model, kept), 0, []
    whole = _weights(model, kept)
    while done < target:
        say(f"pruning: {done / whole:.0%} of the weights of the blocks")
        options = []
        for i in sorted(kept.blocks, key=blocks.__getitem__)[:CANDIDATES] if len(kept.blocks) > 1 else []:
            options.append((f"block {i + 1}", _without_block(kept, i)))
        if all(len(kept.groups[i]) > 1 for i in kept.blocks):
            weakest = {i: min(kept.groups[i], key=lambda g, i=i: groups[i, g]) for i in kept.blocks}
            fewer = kept
            for i, g in weakest.items():
                fewer = _without_group(fewer, i, g)
            options.append(("a key/value head of every block", fewer))
        if not options:
            raise UserError(f"prune={fraction} leaves nothing of the model; prune less")
        before = _weights(model, kept)
        base = _measured(model, kept, loss)
        measured = [(_measured(model, one, loss), before - _weights(model, one), name, one) for name, one in options]
        after, fewer_weights, name, kept = min(measured, key=lambda one: (one[0] - base) / one[1])
        done += fewer_weights
        removed.append(Removed(name, after, fewer_weights))
    return pruned(model, kept), removed


def refuse(model: GPT, fraction: float) -> None:
    """Refuse models whose blocks depend on their number, and impossible fractions."""
    if not 0 < fraction < 1:
        raise UserError(f"prune={fraction} is not a fraction between 0 and 1; prune=0.3 removes 30 % of the weights")
    config = model.config
    if config.repeat > 1 or len(model.masks) > 1:
        raise UserError("blocks that are repeated or have different attentions cannot be pruned; quantize the model")


def prunable_heads(model: GPT) -> int:
    """The number of key/value heads of a block; 1, so that none is removed, where heads are not independent."""
    simple = isinstance(model.config.projection, SeparateConfig) and all(
        type(block.attention) is SelfAttention
        and block.attention.mechanism.bias is None
        and not list(block.attention.mechanism.parameters())
        for block in model.blocks.layers
    )
    return model.config.key_heads if simple else 1


@contextmanager
def without(model: GPT, kept: Kept) -> Iterator[None]:
    """The model without the parts that are not kept, by hooks; restored on exit."""
    with ExitStack() as hooks:
        for number, block in enumerate(model.blocks.layers):
            if number not in kept.blocks:
                hooks.callback(block.register_forward_hook(lambda _, inputs, __: inputs[0]).remove)
                continue
            groups = kept.groups[number]
            if len(groups) < block.attention.kv_heads:
                hooks.callback(block.attention.out.register_forward_pre_hook(_only(groups, block.attention)).remove)
        yield


def _only(groups: tuple[int, ...], attention: SelfAttention) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    def zero(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        parts = inputs[0].unflatten(-1, (attention.kv_heads, -1))
        keep = parts.new_zeros(attention.kv_heads, 1)
        keep[list(groups)] = 1
        return ((parts * keep).flatten(-2),)

    return zero


def _measured(model: GPT, kept: Kept, loss: Loss) -> float:
    with without(model, kept):
        return loss()


def _without_block(kept: Kept, number: int) -> Kept:
    return kept._replace(blocks=tuple(i for i in kept.blocks if i != number))


def _without_group(kept: Kept, number: int, group: int) -> Kept:
    groups = list(kept.groups)
    groups[number] = tuple(g for g in groups[number] if g != group)
    return kept._replace(groups=tuple(groups))


def _weights(model: GPT, kept: Kept) -> int:
    """The number of weights of the kept parts of the blocks."""
    total = 0
    for i in kept.blocks:
        block, attention = model.blocks.layers[i], model.blocks.layers[i].attention
        total += sum(parameter.numel() for parameter in block.parameters())
        heads = sum(parameter.numel() for layer in (attention.qkv, attention.out) for parameter in layer.parameters())
        total -= heads * (attention.kv_heads - len(kept.groups[i])) // attention.kv_heads
    return total


@torch.no_grad()
def pruned(model: GPT, kept: Kept) -> GPT:
    """A model with a smaller config and the kept weights."""
    config, count = model.config, len(kept.groups[kept.blocks[0]])
    changes: dict[str, object] = {"layers": len(kept.blocks)}
    attention = model.blocks.layers[0].attention
    if count < attention.kv_heads:
        assert isinstance(config.projection, SeparateConfig)
        heads = count * attention.heads // attention.kv_heads
        projection = replace(config.projection, size=attention.head_width)
        changes |= {"heads": heads, "kv_heads": count, "projection": projection}
    smaller = replace(config, **changes)  # type: ignore[arg-type]
    assert isinstance(smaller, GPTConfig)
    made, own, weights = smaller.build(), model.state_dict(), {}
    for name in made.state_dict():
        first, *inside = name.split(".", 2)
        if first != "blocks":
            weights[name] = own[name]
            continue
        number, rest = kept.blocks[int(inside[0])], inside[1]
        weights[name] = _sliced(own[f"blocks.{number}.{rest}"], rest, attention, kept.groups[number])
    made.load_state_dict(weights)
    return made.to(next(model.parameters())).eval()


def _sliced(tensor: Tensor, name: str, attention: SelfAttention, groups: tuple[int, ...]) -> Tensor:
    """The rows of ``qkv`` and the columns of ``out`` that belong to the kept heads; other tensors as they are."""
    each = attention.heads // attention.kv_heads
    heads = [g * each + j for g in groups for j in range(each)]
    if name in ("attention.qkv.weight", "attention.qkv.bias"):
        parts = tensor.unflatten(0, (-1, attention.head_width))
        keys = [attention.heads + g for g in groups]
        return parts[[*heads, *keys, *(attention.kv_heads + g for g in keys)]].flatten(0, 1)
    if name == "attention.out.weight":
        return tensor.unflatten(1, (attention.heads, -1))[:, heads].flatten(1)
    return tensor
