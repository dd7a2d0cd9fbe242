"""The residual stream between the blocks of a model, read by the logit lens and changed by activation patching.

The logit lens shows the prediction of each layer if it were the last one: the stream after each block passes through
the model's own last norm and head (nostalgebraist 2020). Patching replaces the stream at one layer by that of another
text: where the prediction changes to that of the other text, the deciding information passed through this layer and
position (Meng et al. 2022, causal tracing).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.look.capture.observe import evaluation_mode
from regard.look.views.reading import NO_TARGET, Reading, compare_losses, mean
from regard.models.base import Model
from regard.nn import Block
from regard.runs.disk import JsonObject

LONGEST = 1024  # tokens under the lens; each passes through the head once per layer
PARTS = 64  # whose effect is measured, by one forward pass each
TOP = 5  # next tokens that patching lists

Spell = Callable[[Sequence[int]], list[str]]  # tokens as text


@contextmanager
def along(model: Model, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """In each forward pass, replace the residual stream x [B, N, C] of each layer by ``change(layer, x)``.

    Layer 0 is the input of the first block, layer i the output of the i-th, counting repetitions of a block. The two
    streams of reversible blocks are concatenated, [B, N, 2C]; the last norm reads their mean.
    """
    blocks = model.residual_blocks()
    if not blocks:
        raise UserError(f"a {type(model).__name__} declares no blocks with a residual stream, so it cannot be probed")
    done = 0

    def before(_: nn.Module, inputs: tuple[object, ...]) -> object:
        nonlocal done
        if done % len(blocks):  # a repetition of the first block
            return None
        done = 0
        return _changed(inputs, lambda x: change(0, x))

    def after(_: nn.Module, __: object, out: Tensor | tuple[object, ...]) -> object:
        nonlocal done
        done += 1
        return _changed(out, lambda x: change(done, x))

    with ExitStack() as hooks:
        hooks.callback(blocks[0].register_forward_pre_hook(before).remove)
        for block in dict.fromkeys(blocks):
            hooks.callback(block.register_forward_hook(after).remove)
        yield


def _changed(values: Tensor | tuple[object, ...], change: Callable[[Tensor], Tensor]) -> object:
    """The inputs or outputs of a block with the stream changed; the rest (masks, a recurrent state) stays."""
    if isinstance(values, Tensor):
        return change(values)
    first, *rest = values
    assert isinstance(first, Tensor)
    if rest and isinstance(rest[0], Tensor) and rest[0].shape == first.shape:
        return (*change(torch.cat((first, rest[0]), -1)).chunk(2, -1), *rest[1:])
    return (change(first), *rest)


def _streams(model: Model, reading: Reading) -> list[Tensor]:
    """The residual stream of each layer, [1, N, C]."""
    streams: list[Tensor] = []

    def record(_: int, x: Tensor) -> Tensor:
        streams.append(x)
        return x

    with along(model, record):
        reading.features(model)
    return streams


def lens(model: Model, reading: Reading, spell: Spell) -> JsonObject:
    """For each layer and token the most probable next token, and the rank of the actual one."""
    count = reading.inputs.shape[1]
    if count > LONGEST:
        raise UserError(f"the lens reads at most {LONGEST:,} tokens, and the text has {count:,}; shorten it")
    top, ranks = [], []
    with evaluation_mode(model):
        for x in _streams(model, reading):
            if x.shape[-1] == 2 * model.config.width:  # of reversible blocks
                x = x.unflatten(-1, (2, -1)).mean(-2)
            predictions: list[JsonObject] = []
            layer_ranks: list[int | None] = []
            for logits, targets in reading.logits(model, model.norm(x)):
                best = logits.softmax(-1).max(-1)
                predictions += _probabilities(spell, best.indices, best.values)
                actual = logits.gather(1, targets.clamp(min=0)[:, None])
                rank = (logits > actual).sum(-1).tolist()
                layer_ranks += [None if t == NO_TARGET else r for t, r in zip(targets.tolist(), rank, strict=True)]
            top.append(predictions)
            ranks.append(layer_ranks)
    layers = ["embedding", *map(str, range(1, len(top)))]
    return {"tokens": spell(reading.inputs[0].tolist()), "layers": layers, "top": top, "target_rank": ranks}


def contributions(model: Model, reading: Reading, spell: Spell) -> JsonObject:
    """The norm of the residual stream of each layer and of what each of its parts adds, by token.

    ``effect`` of a part is the increase of the mean loss if it adds nothing. The parts of a layer that is no `Block`
    are not known: the difference between its output and its input stands for them.
    """
    outputs: list[Tensor] = []
    parts = list(_parts(model))

    def record(_: nn.Module, __: object, out: Tensor) -> None:
        outputs.append(out)

    def without(call: int) -> float:
        calls = iter(range(len(parts)))
        with _hooked(parts, lambda _, __, out: torch.zeros_like(out) if next(calls) == call else None):
            return (mean(reading.losses(model, reading.features(model))) or 0.0) - loss

    with evaluation_mode(model):
        with _hooked(parts, record):
            streams = _streams(model, reading)
        loss = mean(reading.losses(model, reading.features(model))) or 0.0
        effects = [without(call) if len(parts) <= PARTS else None for call in range(len(parts))]
    found = [(layer, kind) for layer, kind, _ in parts]
    if not parts:
        outputs = [after - before for before, after in pairwise(streams)]
        found, effects = [(layer, "layer") for layer in range(1, len(streams))], [None] * len(outputs)
    norms = [out[0].float().norm(dim=-1).tolist() for out in outputs]
    return {
        "tokens": spell(reading.inputs[0].tolist()),
        "residual": [x[0].float().norm(dim=-1).tolist() for x in streams],
        "parts": [
            {"layer": layer, "kind": kind, "norm": norm, "effect": effect}
            for (layer, kind), norm, effect in zip(found, norms, effects, strict=True)
        ],
    }


def _parts(model: Model) -> Iterator[tuple[int, str, nn.Module]]:
    """Layer, kind and module of what is added to the residual stream, in order of execution."""
    for layer, block in enumerate(model.residual_blocks(), start=1):
        if isinstance(block, Block):
            kinds = {"attention": block.attention, "cross-attention": block.cross, "feed-forward": block.feedforward}
            yield from ((layer, kind, part) for kind, part in kinds.items() if part is not None)


@contextmanager
def _hooked(parts: Sequence[tuple[int, str, nn.Module]], hook: Callable[..., Tensor | None]) -> Iterator[None]:
    with ExitStack() as hooks:
        for module in dict.fromkeys(module for _, _, module in parts):
            hooks.callback(module.register_forward_hook(hook).remove)
        yield


def patch(
    model: Model, reading: Reading, other: Reading, layer: int, positions: Sequence[int] | None, spell: Spell
) -> JsonObject:
    """Loss of each token and most probable next tokens, before and after patching ``layer`` from ``other``.

    Layer 0 is the input of the first block, layer i the output of the i-th. Default ``positions``: all that both texts
    have.
    """
    count = min(reading.inputs.shape[1], other.inputs.shape[1])
    chosen = list(range(count) if positions is None else positions)
    for position in chosen:
        if not 0 <= position < count:
            raise UserError(f"both texts have the positions 0 to {count - 1}, not {position}")
    with evaluation_mode(model):
        streams = _streams(model, other)
        if not 0 <= layer < len(streams):
            raise UserError(f"this model has the layers 0 to {len(streams) - 1}, not {layer}")

        def replace(number: int, x: Tensor) -> Tensor:
            if number != layer:
                return x
            x = x.clone()
            x[:, chosen] = streams[layer][:, chosen]
            return x

        def next_tokens(features: Tensor) -> list[JsonObject]:
            best = model.head(features[0, -1]).float().softmax(-1).topk(min(TOP, model.config.vocabulary))
            return _probabilities(spell, best.indices, best.values)

        plain = reading.features(model)
        with along(model, replace):
            patched = reading.features(model)
        compared = compare_losses(reading.losses(model, plain), reading.losses(model, patched))
        return {**compared, "next": {"before": next_tokens(plain), "after": next_tokens(patched)}}


def _probabilities(spell: Spell, tokens: Tensor, values: Tensor) -> list[JsonObject]:
    """Tokens [n] as text with their probabilities [n]."""
    pairs = zip(spell(tokens.tolist()), values.tolist(), strict=True)
    return [{"text": text, "probability": p} for text, p in pairs]
