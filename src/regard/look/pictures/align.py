"""Alignment: the source words that each word of a translation attends to.

The weights are those of a forward pass over the finished translation (teacher forcing), recomputed by `trace.py` for
every attention over the source: one map for a recurrent decoder, layers × heads for a Transformer. Tokens are merged
into words: a word's column is the sum over its tokens, its row their mean, so that a row still sums to one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.batch import Specials
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.look.capture.trace import attentions, dense_weights
from regard.models.base import Seq2SeqModel, parameter_device

END = "<end>"
SHADES = " ░▒▓█"
LEVELS = (0.05, 0.15, 0.35, 0.65)  # lower bounds of the shades
LONGEST = 14  # terminal columns per word


class HeadMap(NamedTuple):
    """The weights of one head."""

    name: str
    weights: Tensor  # [words of the translation, words of the source]


class Alignment(NamedTuple):
    """The attention maps of one sentence and its translation."""

    source: list[str]
    target: list[str]
    maps: list[HeadMap]

    @property
    def mean(self) -> Tensor:
        """Over all heads of all layers."""
        return torch.stack([one.weights for one in self.maps]).mean(0)

    def words(self) -> str:
        """For each word the source word with the largest weight, for screen readers."""
        best = self.mean.max(1)
        pairs = zip(self.target, best.indices.tolist(), best.values.tolist(), strict=True)
        return "; ".join(f"{word} from {self.source[at]} ({weight:.2f})" for word, at, weight in pairs)


def align(
    model: Seq2SeqModel, tokenizer: Tokenizer, specials: Specials, source: Sequence[int], target: Sequence[int]
) -> Alignment:
    """The alignment of one translation: ``source`` with its end token, ``target`` with or without."""
    target = [token for token in target if token != specials.end]
    device = parameter_device(model)
    inputs = torch.tensor([[specials.begin, *target]], device=device)
    sources = torch.tensor([list(source)], device=device)
    lengths = torch.tensor([len(source)], device=device)
    source_words = split_words(tokenizer, specials, source)
    target_words = split_words(tokenizer, specials, [*target, specials.end])
    maps = []
    for layer, heads in enumerate(over_source(model, inputs, sources, lengths), 1):
        for head, weights in enumerate(heads, 1):
            name = "attention" if len(heads) == 1 else f"layer {layer}, head {head}"
            maps.append(HeadMap(name, merge_tokens(weights, target_words, source_words)))
    if not maps:
        raise UserError("this model has no attention over the source, so there is no alignment to draw")
    return Alignment([word for word, _ in source_words], [word for word, _ in target_words], maps)


def over_source(model: Seq2SeqModel, inputs: Tensor, source: Tensor, lengths: Tensor) -> list[Tensor]:
    """The weights [H, T, S] of each attention over the source."""
    observed = attentions(model, lambda: model.features(inputs, source, lengths))
    over = [seen for seen in observed if not seen.plan.own and seen.k.shape[2] == source.shape[1]]
    return [dense_weights(seen)[0].cpu() for seen in over]


def split_words(tokenizer: Tokenizer, specials: Specials, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """The words of a token sequence, and the number of tokens of each; a word includes the white space before it."""
    words: list[tuple[bytes, int]] = []
    for token in tokens:
        piece = END.encode() if token == specials.end else tokenizer.decode_bytes([token])
        begins = not words or token == specials.end or (piece[:1].isspace() and words[-1][0].strip())
        text, count = (b"", 0) if begins else words.pop()
        words.append((text + piece, count + 1))
    return [(text.decode("utf-8", "replace").strip() or "␣", count) for text, count in words]


def merge_tokens(weights: Tensor, target: list[tuple[str, int]], source: list[tuple[str, int]]) -> Tensor:
    """Weights between tokens [T, S] to weights between words."""
    columns = torch.stack([part.sum(1) for part in weights.split([count for _, count in source], 1)], 1)
    return torch.stack([part.mean(0) for part in columns.split([count for _, count in target])])


def draw(alignment: Alignment, width: int = 80, color: bool = False) -> str:
    """The mean map for a terminal of ``width`` columns: a row per target word; wide maps are split into parts."""
    from rich.cells import cell_len, set_cell_size

    mean = alignment.mean
    side = min(max(cell_len(word) for word in alignment.target), max(6, width // 3))
    sizes = [min(max(cell_len(word), 2), LONGEST, max(2, width - side - 1)) for word in alignment.source]
    parts: list[list[int]] = [[]]
    for at, size in enumerate(sizes):
        if parts[-1] and side + sum(sizes[i] + 1 for i in parts[-1]) + 1 + size > width:
            parts.append([])
        parts[-1].append(at)
    on, off = ("\033[34m", "\033[0m") if color else ("", "")
    lines = []
    for part in parts:
        lines.append(" " * side + "".join(" " + cut(alignment.source[at], sizes[at]) for at in part))
        for word, shares in zip(alignment.target, mean.tolist(), strict=True):
            cells = "".join(" " + shade(shares[at]) * sizes[at] for at in part)
            lines.append(set_cell_size(cut(word, side), side) + on + cells + off)
        lines.append("")
    legend = "  ".join(f"{SHADES[i + 1]} {level:.0%}+" for i, level in enumerate(LEVELS))
    heads = f", mean of {len(alignment.maps)} heads" if len(alignment.maps) > 1 else ""
    return "\n".join([*(line.rstrip() for line in lines), f"{legend}{heads}"])


def shade(weight: float) -> str:
    """The character for a weight."""
    return SHADES[sum(weight >= level for level in LEVELS)]


def cut(word: str, size: int) -> str:
    """A word in exactly ``size`` columns, with an ellipsis if it is cut."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(word, size) if cell_len(word) <= size else set_cell_size(word, size - 1) + "…"
