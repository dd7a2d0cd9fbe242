"""Models of a given size: the config whose model has about so many parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeVar

from torch import nn

from regard.errors import UserError
from regard.models import Model, ModelConfig
from regard.models.parts import BlocksConfig
from regard.models.shapes import build_on_meta

CLOSE = 0.02  # relative error of a size that is as asked for
LARGEST = 2**17  # width that is tried
FURTHER = 4  # layers more or fewer than asked for
HEAD = 1.5  # factor by which heads may be wider or narrower than those of the given model

M = TypeVar("M", bound=ModelConfig)
Counted = Literal["all", "without_embeddings"]


def parameters(model: Model) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())


def parameters_without_embeddings(model: Model) -> int:
    """The number of parameters but for embedding tables (Kaplan et al. 2020, section 2.1).

    A table counts if it is tied to the head, where it is a matrix that every token is multiplied by.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    heads = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    return sum(p.numel() for p in model.parameters() if id(p) not in tables - heads)


COUNTERS: dict[Counted, Callable[[Model], int]] = {
    "all": parameters,
    "without_embeddings": parameters_without_embeddings,
}


def with_parameters(model: M, count: float, counted: Counted = "all") -> M:
    """The same parts at another size: about ``count`` parameters, at most ``CLOSE`` off where widths allow that.

    The width is solved for; heads are about as wide as they were, so that their number changes. The number of layers
    only changes where no width is close enough. The vocabulary should be that of the data: ``Experiment.model_for``.
    """
    names = model.__dataclass_fields__
    if "width" not in names or "layers" not in names:
        raise UserError(f"a {model.kind} has no width and layers to change; choose another --model")
    size = lru_cache(None)(lambda config: COUNTERS[counted](build_on_meta(config)))
    smallest = _next(model, 1, 1)
    if smallest is None or count < size(smallest) * (1 - CLOSE):
        least = "no" if smallest is None else f"{size(smallest):,}"
        raise UserError(
            f"the smallest {model.kind} with these parts has {least} parameters, and {round(count):,} were asked for; "
            "ask for more"
        )
    orders = [[model.layers], *([model.layers - n, model.layers + n] for n in range(1, FURTHER + 1))]
    found: list[tuple[float, M]] = []
    for layers in orders:
        found += [(abs(size(one) / count - 1), one) for n in layers if n > 0 for one in _around(model, n, count, size)]
        close = [(abs(math.log(_shape(one) / _shape(model))), off, one) for off, one in found if off <= CLOSE]
        if close:
            return min(close, key=lambda entry: entry[:2])[-1]
    return min(found, key=lambda entry: entry[0])[1]


def nearest_width(model: M, count: float, counted: Counted = "all") -> M:
    """The same parts and number of layers at the width whose number of parameters is nearest to ``count``."""
    size = lru_cache(None)(lambda config: COUNTERS[counted](build_on_meta(config)))
    found = [(abs(math.log(size(one) / count)), one) for one in _around(model, model.layers, count, size)]
    if not found:
        raise UserError(f"no width of a {model.kind} with {model.layers} layers is near {round(count):,} parameters")
    return min(found, key=lambda entry: entry[0])[1]


def _shape(model: ModelConfig) -> float:
    return model.width / model.layers


def _around(model: M, layers: int, count: float, size: Callable[[M], int]) -> Iterator[M]:
    """The configs with so many layers just below and just above ``count`` parameters."""
    low, high = 0, 1  # low: a legal width below the count, or 0; high: no legal width from here on is below it
    while high < LARGEST and (one := _next(model, layers, high)) is not None and size(one) < count:
        low, high = one.width, 2 * one.width
    while high - low > 1:
        one = _next(model, layers, (low + high) // 2)
        if one is None or size(one) >= count:
            high = (low + high) // 2
        else:
            low = one.width
    below = _resized(model, layers, low) if low else None
    above = _next(model, layers, low + 1)
    yield from (one for one in (below, above) if one is not None)


def _next(model: M, layers: int, width: int) -> M | None:
    """The config of the smallest legal width from ``width`` on."""
    found = (_resized(model, layers, wider) for wider in range(width, 2 * max(width, model.width) + 1))
    return next((one for one in found if one is not None), None)


def _resized(model: M, layers: int, width: int) -> M | None:
    """The model with these sizes and heads about as wide as they were; None if no number of heads is."""
    config = replace(model, layers=layers, width=width)
    if isinstance(model, BlocksConfig):
        heads = _heads(model, width)
        if heads is None:
            return None
        kv_heads = None if model.kv_heads is None else heads * model.kv_heads // model.heads
        config = replace(config, heads=heads, kv_heads=kv_heads)
    try:
        config.check()
    except (ValueError, UserError):
        return None
    return config


def _heads(model: BlocksConfig, width: int) -> int | None:
    """The number of heads with which each is about as wide as before, and a multiple of 4 (or 2) if it was one."""
    before, group = model.width // model.heads, model.heads // model.key_heads
    unit = math.gcd(before, 4)
    able = [n for n in range(group, width + 1, group) if width % (n * unit) == 0]
    heads = min(able, key=lambda n: abs(math.log(width / n / before)), default=None)
    if heads is None or (heads > group and not 1 / HEAD <= width / heads / before <= HEAD):
        return None
    return heads if width / heads <= before * HEAD else None
