"""Switching heads off: what a head wrote is set to zero, and loss and text are seen to change, or not.

This is the test that a map alone is not (Jain & Wallace 2019, "Attention is not explanation"; Michel et al. 2019 cut
heads so). A head's part is zeroed where it enters the layer's last product, in reading and in decoding alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention import Out
from regard.errors import UserError
from regard.look.capture.trace import Attention, NotObservable, SpilledAttention, evaluation_mode, everything
from regard.look.views.reading import Reading, mean


class Place(NamedTuple):
    """One attention of a model: its module, and which of its uses in one pass it is (a block may be repeated)."""

    name: str
    use: int
    heads: int


def places(found: Sequence[Attention | NotObservable | SpilledAttention]) -> list[Place]:
    """Where the attentions of a trace are."""
    names = [one.name for one in found]
    heads = [one.q.shape[1] if isinstance(one, Attention) else one.heads for one in found]
    return [Place(name, names[:i].count(name), heads[i]) for i, name in enumerate(names)]


@contextmanager
def without(model: nn.Module, where: Sequence[Place], heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """The model with these (attention, head) silenced; afterwards it is as it was."""
    chosen: dict[str, dict[int, list[int]]] = {}
    for attention, head in heads:
        if not 0 <= attention < len(where):
            raise UserError(f"there is no attention {attention}: this model has 0 to {len(where) - 1}")
        place = where[attention]
        if not 0 <= head < place.heads:
            raise UserError(f"attention {attention} has the heads 0 to {place.heads - 1}, not {head}")
        chosen.setdefault(place.name, {}).setdefault(place.use, []).append(head)
    with ExitStack() as hooks:
        for name, by_use in chosen.items():
            uses = sum(place.name == name for place in where)
            count = next(place.heads for place in where if place.name == name)
            parent = model.get_submodule(name.rpartition(".")[0])
            out = getattr(parent, "out", None)
            if isinstance(out, nn.Linear) and out.in_features % count == 0:
                hook = out.register_forward_pre_hook(_before_product(by_use, uses, count))
            else:  # a recurrent decoder's: what is mixed goes several ways
                hook = model.get_submodule(name).register_forward_hook(_after_mixing(by_use.get(0, [])))
            hooks.callback(hook.remove)
        yield


def _before_product(by_use: dict[int, list[int]], uses: int, count: int) -> Callable[..., Any]:
    calls = 0

    def silence(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        heads, calls = by_use.get(calls % uses, []), calls + 1
        parts = inputs[0].unflatten(-1, (count, -1)).clone()
        parts[..., heads, :] = 0
        return (parts.flatten(-2),)

    return silence


def _after_mixing(heads: list[int]) -> Callable[..., Any]:
    def silence(_: nn.Module, __: Any, out: Out) -> Out:
        values = out.values.clone()
        values[:, heads] = 0
        return out._replace(values=values)

    return silence


def ablate(
    model: Any, reading: Reading, heads: Sequence[tuple[int, int]], write: Callable[[], str | None]
) -> dict[str, Any]:
    """The loss of each token and what ``write`` writes, before and after."""
    features: list[Tensor] = []
    where = places(everything(model, lambda: features.append(reading.features(model))))
    with evaluation_mode(model):
        before, text = reading.losses(model, features[0]), write()
        with without(model, where, heads):
            after, other = reading.losses(model, reading.features(model)), write()
    return {**compared(before, after), "text": {"before": text, "after": other}}


def compared(before: list[float | None], after: list[float | None]) -> dict[str, Any]:
    """Two readings of one text, in nats: as means, and token by token."""
    pairs = [list(pair) for pair in zip(before, after, strict=True)]
    return {"loss": {"before": mean(before), "after": mean(after)}, "per_token": pairs}
