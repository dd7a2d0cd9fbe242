"""Alignment: which words of the source each word of a translation was written from, by the attention weights.

The weights are those of a pass over the finished translation (teacher forcing), taken by a side call (`trace.py`) from
every attention over the source: one map for a recurrent decoder, layers × heads for a Transformer. Tokens are joined to
words: a word's column is the sum over its tokens, its row their mean, so that a row still sums to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.trace import attentions, rows

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials

END = "<end>"
SHADES = " ░▒▓█"
LEVELS = (0.05, 0.15, 0.35, 0.65)  # weights from which the next shade is used
LONGEST = 14  # columns of the terminal for one word


class Map(NamedTuple):
    """The weights of one head."""

    name: str
    weights: Tensor  # [words of the translation, words of the source]


class Alignment(NamedTuple):
    """One sentence, its translation, and where each word of it looked."""

    source: list[str]
    target: list[str]
    maps: list[Map]

    @property
    def mean(self) -> Tensor:
        """Over all heads of all layers."""
        return torch.stack([one.weights for one in self.maps]).mean(0)

    def words(self) -> str:
        """In words, for those who do not see it: for each word the one it looked at most."""
        best = self.mean.max(1)
        pairs = zip(self.target, best.indices.tolist(), best.values.tolist(), strict=True)
        return "; ".join(f"{word} from {self.source[at]} ({weight:.2f})" for word, at, weight in pairs)


def align(
    model: Any, tokenizer: Tokenizer, specials: Specials, source: Sequence[int], target: Sequence[int]
) -> Alignment:
    """Look at one translation: ``source`` with its end mark, ``target`` with or without."""
    target = [token for token in target if token != specials.end]
    device = next(model.parameters()).device
    inputs = torch.tensor([[specials.begin, *target]], device=device)
    given = torch.tensor([list(source)], device=device)
    lengths = torch.tensor([len(source)], device=device)
    read = split_words(tokenizer, specials, source)
    written = split_words(tokenizer, specials, [*target, specials.end])
    maps = []
    for layer, heads in enumerate(over_source(model, inputs, given, lengths), 1):
        for head, weights in enumerate(heads, 1):
            name = "attention" if len(heads) == 1 else f"layer {layer}, head {head}"
            maps.append(Map(name, joined(weights, written, read)))
    if not maps:
        raise UserError("this model has no attention over the source, so there is no alignment to draw")
    return Alignment([word for word, _ in read], [word for word, _ in written], maps)


def over_source(model: Any, inputs: Tensor, source: Tensor, lengths: Tensor) -> list[Tensor]:
    """The weights [H, T, S] of each attention over the source."""
    found = attentions(model, lambda: model.features(inputs, source, lengths))
    over = [seen for seen in found if not seen.plan.own and seen.k.shape[2] == source.shape[1]]
    return [torch.cat([block.weights[0].cpu() for block in rows(seen)], 1) for seen in over]


def split_words(tokenizer: Tokenizer, specials: Specials, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """The words that tokens spell, and how many tokens each takes; white space before a word belongs to it."""
    found: list[tuple[bytes, int]] = []
    for token in tokens:
        piece = END.encode() if token == specials.end else tokenizer.decode_bytes([token])
        begins = not found or token == specials.end or (piece[:1].isspace() and found[-1][0].strip())
        text, count = (b"", 0) if begins else found.pop()
        found.append((text + piece, count + 1))
    return [(text.decode("utf-8", "replace").strip() or "␣", count) for text, count in found]


def joined(weights: Tensor, written: list[tuple[str, int]], read: list[tuple[str, int]]) -> Tensor:
    """Weights between tokens [T, S] to weights between words."""
    columns = torch.stack([part.sum(1) for part in weights.split([count for _, count in read], 1)], 1)
    return torch.stack([part.mean(0) for part in columns.split([count for _, count in written])])


def draw(alignment: Alignment, width: int = 80, colour: bool = False) -> str:
    """The mean map for a terminal of ``width`` columns: a row for each word written, in as many bands as it takes."""
    from rich.cells import cell_len, set_cell_size

    mean = alignment.mean
    side = min(max(cell_len(word) for word in alignment.target), max(6, width // 3))
    sizes = [min(max(cell_len(word), 2), LONGEST, max(2, width - side - 1)) for word in alignment.source]
    bands: list[list[int]] = [[]]
    for at, size in enumerate(sizes):
        if bands[-1] and side + sum(sizes[i] + 1 for i in bands[-1]) + 1 + size > width:
            bands.append([])
        bands[-1].append(at)
    on, off = ("\033[34m", "\033[0m") if colour else ("", "")
    lines = []
    for band in bands:
        lines.append(" " * side + "".join(" " + cut(alignment.source[at], sizes[at]) for at in band))
        for word, shares in zip(alignment.target, mean.tolist(), strict=True):
            cells = "".join(" " + shade(shares[at]) * sizes[at] for at in band)
            lines.append(set_cell_size(cut(word, side), side) + on + cells + off)
        lines.append("")
    legend = "  ".join(f"{SHADES[i + 1]} {level:.0%}+" for i, level in enumerate(LEVELS))
    heads = f", mean of {len(alignment.maps)} heads" if len(alignment.maps) > 1 else ""
    return "\n".join([*(line.rstrip() for line in lines), f"{legend}{heads}"])


def shade(weight: float) -> str:
    """The character for a weight."""
    return SHADES[sum(weight >= level for level in LEVELS)]


def cut(word: str, size: int) -> str:
    """A word in exactly so many columns; what is left out is marked."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(word, size) if cell_len(word) <= size else set_cell_size(word, size - 1) + "…"
