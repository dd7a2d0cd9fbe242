"""Attention on a graph: a drawing for each head, whose edges are as dark as their weights."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from regard.look.capture.layer_names import layer_names
from regard.look.capture.observe import Attention, dense_weights
from regard.pages.svg import moved, picture, tag, text

SIDE, GAP, TOP, RADIUS = 300, 24, 56, 4  # pixels of a drawing, between drawings, above them, and of a node
NAMED = 60  # nodes of the largest graph whose nodes have names
STEPS = 300  # of the layout


def graph_picture(title: str, names: Sequence[str], links: NDArray[np.int64], attentions: Sequence[Attention]) -> str:
    """An SVG file with a row for each layer and a drawing for each head, in the order of the layers.

    The line between two nodes stands for the larger of the weights that either gives the other; the darkest line of a
    drawing has the largest weight.
    """
    links = np.unique(np.sort(links, axis=1), axis=0)
    links = links[links[:, 0] != links[:, 1]]
    places, rows = layout(len(names), links) * (SIDE - 60) + 30, []
    layers = layer_names([one.name for one in attentions])
    for number, one in enumerate(attentions):
        for head, weights in enumerate(dense_weights(one.load())[0].cpu().double().numpy()):
            weight = np.maximum(weights[links[:, 0], links[:, 1]], weights[links[:, 1], links[:, 0]])
            drawn = _drawing(names, places, links, weight)
            words = f"{layers[number].name}, head {head + 1}: up to {weight.max(initial=0):.2f}"
            place = (GAP + head * (SIDE + GAP), TOP + number * (SIDE + 2 * GAP))
            rows.append(moved(*place, text(words, 0, 0) + moved(0, 8, drawn)))
    heads = max((one.heads for one in attentions), default=1)
    size = (GAP + heads * (SIDE + GAP), TOP + len(attentions) * (SIDE + 2 * GAP))
    about = f"Attention along the {len(links)} edges of {title}, for each layer and head."
    return picture(f"Attention on {title}", about, *size, [text(about, GAP, 24), *rows])


def _drawing(names: Sequence[str], places: NDArray, links: NDArray[np.int64], weight: NDArray) -> str:
    """One graph."""
    parts, most = [], max(float(weight.max(initial=0)), 1e-9)
    for (one, other), value in zip(links.tolist(), weight.tolist(), strict=True):
        (x1, y1), (x2, y2) = places[one].tolist(), places[other].tolist()
        shown = {"style": "stroke:var(--ink)", "stroke_opacity": 0.06 + 0.94 * value / most}
        line = tag("title", escape(f"{names[one]} - {names[other]}: {value:.3f}"))
        parts.append(tag("line", line, x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=0.7 + 2 * value / most, **shown))
    for name, (x, y) in zip(names, places.tolist(), strict=True):
        parts.append(tag("circle", tag("title", escape(name)), class_="ink", cx=x, cy=y, r=RADIUS))
        if len(names) <= NAMED:
            parts.append(text(name.strip()[:16], x + RADIUS + 1, y - RADIUS, "soft"))
    return "".join(parts)


def layout(count: int, links: NDArray[np.int64]) -> NDArray[np.float64]:
    """Places [N, 2] from 0 to 1: nodes repel each other and edges attract (Fruchterman & Reingold 1991)."""
    angle = 2 * np.pi * np.arange(count) / max(1, count)
    places, near = np.stack((np.cos(angle), np.sin(angle)), 1), np.zeros((count, count))
    near[links[:, 0], links[:, 1]] = near[links[:, 1], links[:, 0]] = 1
    ideal = 2 / max(1, count) ** 0.5
    for step in range(STEPS):
        apart = places[:, None] - places
        distance = np.linalg.norm(apart, axis=2).clip(1e-3)
        force = ideal**2 / distance**2 - near * distance / ideal
        move = (apart * force[..., None]).sum(1) - 0.05 * places  # and a weak pull to the middle
        length = np.linalg.norm(move, axis=1, keepdims=True).clip(1e-9)
        places = places + move / length * np.minimum(length, 0.3 * (1 - step / STEPS))
    low, high = places.min(0), places.max(0)
    return (places - low) / (high - low).clip(1e-9)
