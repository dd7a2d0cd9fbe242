"""The names of the layers of attentions, which the page and the report share."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class LayerName(NamedTuple):
    """The layer of an attention."""

    number: int  # counted from 1 among the attentions of its kind
    name: str
    short: str


def layer_names(paths: Sequence[str]) -> list[LayerName]:
    """Name the layers of mechanisms, given by their module paths in order of execution.

    A repeated block is several layers. The only attention of a recurrent decoder is over the source.

    >>> paths = ["blocks.0.attention", "blocks.0.attention", "encoder.0.attention", "decoder.0.cross", "decoder"]
    >>> [(layer.name, layer.short) for layer in layer_names([f"{path}.mechanism" for path in paths])][1:]
    [('layer 2', '2'), ('encoder layer 1', 'e1'), ('decoder layer 1, cross', 'd1×'), ('decoder layer 1, cross', 'd1×')]
    """
    kinds = [re.sub(r"\.\d+\.", ".", path) for path in paths]
    named = []
    for i, path in enumerate(paths):
        first, second, *_ = *path.split("."), ""
        stack = first if first in ("encoder", "decoder") else ""
        cross = ".cross." in path or (stack == "decoder" and not second.isdigit())
        number = kinds[: i + 1].count(kinds[i])
        name = f"{stack} layer {number}{', cross' * cross}".strip()
        named.append(LayerName(number, name, f"{stack[:1]}{number}{'×' * cross}"))
    return named
