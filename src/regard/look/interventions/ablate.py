"""Ablation of heads: the output of a head is set to zero, and the loss and the generated text are compared.

This shows the effect of a head, which its map alone does not (Jain & Wallace 2019, "Attention is not explanation";
Michel et al. 2019). A head's output is zeroed at the input of the layer's output projection, also in decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention import Out
from regard.errors import UserError
from regard.look.capture.trace import Observation, evaluation_mode, observe
from regard.look.views.reading import JsonObject, Reading, mean
from regard.models.base import Model
from regard.nn.attention import CrossAttention, SelfAttention


class AttentionSite(NamedTuple):
    """One attention of a model: its module, and which of its calls in a pass it is (a block may be repeated)."""

    name: str
    use: int
    heads: int


def attention_sites(observations: Sequence[Observation]) -> list[AttentionSite]:
    """The modules of the attentions of a trace."""
    names = [one.name for one in observations]
    return [AttentionSite(one.name, names[:i].count(one.name), one.heads) for i, one in enumerate(observations)]


@contextmanager
def ablated(model: Model, sites: Sequence[AttentionSite], heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """The model without these (attention, head); restored on exit."""
    chosen: dict[str, dict[int, list[int]]] = {}
    for attention, head in heads:
        if not 0 <= attention < len(sites):
            raise UserError(f"there is no attention {attention}: this model has 0 to {len(sites) - 1}")
        site = sites[attention]
        if not 0 <= head < site.heads:
            raise UserError(f"attention {attention} has the heads 0 to {site.heads - 1}, not {head}")
        chosen.setdefault(site.name, {}).setdefault(site.use, []).append(head)
    with ExitStack() as hooks:
        for name, by_use in chosen.items():
            uses = sum(site.name == name for site in sites)
            count = next(site.heads for site in sites if site.name == name)
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, SelfAttention | CrossAttention):
                hook = layer.out.register_forward_pre_hook(_zero_inputs(by_use, uses, count))
            else:  # a recurrent decoder uses the attention's output in several places
                hook = model.get_submodule(name).register_forward_hook(_zero_outputs(by_use.get(0, [])))
            hooks.callback(hook.remove)
        yield


def _zero_inputs(by_use: dict[int, list[int]], uses: int, count: int) -> Callable[..., Any]:
    calls = 0

    def zero(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        heads, calls = by_use.get(calls % uses, []), calls + 1
        parts = inputs[0].unflatten(-1, (count, -1)).clone()
        parts[..., heads, :] = 0
        return (parts.flatten(-2),)

    return zero


def _zero_outputs(heads: list[int]) -> Callable[..., Any]:
    def zero(_: nn.Module, __: Any, out: Out) -> Out:
        values = out.values.clone()
        values[:, heads] = 0
        return out._replace(values=values)

    return zero


def ablate(
    model: Model, reading: Reading, heads: Sequence[tuple[int, int]], generate: Callable[[], str | None]
) -> JsonObject:
    """The loss of each token and the generated text, before and after."""
    features: list[Tensor] = []
    sites = attention_sites(observe(model, lambda: features.append(reading.features(model))))
    with evaluation_mode(model):
        before, text = reading.losses(model, features[0]), generate()
        with ablated(model, sites, heads):
            after, other = reading.losses(model, reading.features(model)), generate()
    return {**compare_losses(before, after), "text": {"before": text, "after": other}}


def compare_losses(before: list[float | None], after: list[float | None]) -> JsonObject:
    """The losses of one text in two passes, in nats: as means, and token by token."""
    pairs = [list(pair) for pair in zip(before, after, strict=True)]
    return {"loss": {"before": mean(before), "after": mean(after)}, "per_token": pairs}
