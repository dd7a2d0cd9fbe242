"""Exact measures of a head: the entropy of its weights, the weight on the previous, own and first token, and its roles.

Each strip of weights is computed, reduced and discarded, so that texts of any length can be measured. A role is scored
from 0 to 1 by the share of the weight that fits it:

* ``previous``    weight on the previous token;
* ``self``        weight on the token itself;
* ``sink``        weight on the first visible token, the attention sink (Xiao et al. 2024);
* ``induction``   on a repeated random text, weight on the token that followed the same token before (Olsson et al.
                  2022, the prefix-matching score);
* ``positional``  overlap Σ min(w, w') of the rows at the same position of two random texts: 1 if the weights depend on
                  the position alone.

The first three are means over the rows of the given text that see at least two keys. The others come from random texts,
because real texts repeat themselves in many ways, and exist for language models only.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.capture.layer_names import LayerName, layer_names
from regard.look.capture.observe import Attention, observe
from regard.look.capture.strips import ROWS, Strip, strip, strip_ranges
from regard.models.base import LanguageModel

#: A head with at least this share of its weight on one kind of key is named after it.
MOST = 0.5
#: Nats per token by which the loss must change for an effect to count.
NOTABLE = 0.005
#: A head with at least this share of the maximum entropy is called even.
EVEN = 0.9
#: A head whose rows overlap by this much is positional; any two rows over few keys overlap by half.
POSITIONAL = 0.8
#: Tokens of the random text, which is repeated once: at most, and at least.
LONGEST, SHORTEST = 64, 4


class Head(NamedTuple):
    """One head on one passage. Each number is a mean over the queries that see at least two keys."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    name: str  # the mechanism's module path
    layer_name: LayerName
    entropy: float  # of the weights, in nats
    spread: float  # entropy as a share of its maximum, the log of the number of visible keys
    previous: float  # weight on the previous token
    own: float  # weight on the token itself
    first: float  # weight on the first visible token
    peak: float  # the maximum weight

    @property
    def label(self) -> str:
        """The short name of the layer and the number of the head, as on the page: 1.2, or d1×.2."""
        return f"{self.layer_name.short}.{self.head}"


class RowMeasures(NamedTuple):
    """Measures of every row of weights, [B, H, Q] each.

    In cross-attention, the previous and the own token do not exist and count 0.
    """

    seen: Tensor  # the number of visible keys
    entropy: Tensor  # in nats; 0 without visible keys
    previous: Tensor  # weight on the previous token
    own: Tensor  # weight on the token itself
    first: Tensor  # weight on the first visible token
    peak: Tensor  # the maximum weight


def row_measures(attention: Attention, block: int = ROWS) -> RowMeasures:
    """The measures of all rows; ``block`` rows of weights of one head are in memory at a time."""
    dtype = torch.promote_types(attention.q.dtype, torch.float32)
    measures = RowMeasures(*(attention.q.new_zeros(attention.q.shape[:3], dtype=dtype) for _ in RowMeasures._fields))
    before, same = (_key_at(attention, back) for back in (1, 0))
    ranges = strip_ranges(attention, block)
    for head in range(attention.heads):
        for part in ranges:
            one = strip(attention, head, part)
            keys = before[:, part.rows], same[:, part.rows], one.first()
            values = one.count(), one.entropy(), *(_picked(one, key) for key in keys), one.weights.amax(-1)
            for measure, value in zip(measures, values, strict=True):
                measure[:, head, part.rows] = value.to(dtype)
    return measures


def heads(attentions: Iterable[Attention], block: int = ROWS) -> list[Head]:
    """The measures of every head; ``block`` rows of weights are in memory at a time."""
    measured, attentions = [], list(attentions)
    names = layer_names([attention.name for attention in attentions])
    for layer, attention in enumerate(attentions, start=1):
        rows = row_measures(attention, block)
        counted = rows.seen > 1  # [B, H, Q]
        spread = rows.entropy / rows.seen.clamp(min=2).log()
        measures = torch.stack((rows.entropy, spread, *rows[2:])).double()  # [measures, B, H, Q]
        means = (measures * counted).sum((1, 3)) / counted.sum((0, 2)).clamp(min=1)
        columns = means.T.tolist()  # [H, measures]
        place = attention.name, names[layer - 1]
        measured += [Head(layer, number, *place, *column) for number, column in enumerate(columns, start=1)]
    return measured


def describe(head: Head) -> str:
    """The kind of a head: previous token, own token, first token, even, focused or mixed."""
    places = {"previous token": head.previous, "own token": head.own, "first token": head.first}
    place = max(places, key=lambda name: places[name])
    if places[place] >= MOST:
        return place
    if head.spread >= EVEN:
        return "even"
    return "focused" if head.peak >= MOST else "mixed"


def _key_at(attention: Attention, back: int) -> Tensor:
    """The index [B, Q] of the key ``back`` positions before each query in its own document; -1 if there is none."""
    plan, batch, device = attention.plan, attention.q.shape[0], attention.q.device
    nowhere = torch.full((batch, attention.q.shape[2]), -1, device=device)
    if not plan.same_tokens:
        return nowhere
    rows = torch.arange(plan.queries.rows, device=device)[:, None]
    order, segment, _ = plan.queries.at(rows, torch.arange(plan.queries.length, device=device)[None])
    order, segment = (x.expand(len(rows), -1).contiguous() for x in (order, segment))
    filled = order.masked_fill(segment < 0, -(2**31))  # an empty slot has no neighbors
    sorted_, index = filled.sort(-1)
    place = torch.searchsorted(sorted_, order - back).clamp(max=order.shape[1] - 1)
    there = (sorted_.gather(1, place) == order - back) & (segment >= 0)
    keys = index.gather(1, place)
    return torch.where(there & (segment.gather(1, keys) == segment), keys, nowhere)


def _picked(one: Strip, keys: Tensor) -> Tensor:
    """The weights [B, q] at one key of each row, given as [B, q]; 0 outside the strip."""
    place = keys - one.part.columns.start
    inside = (place >= 0) & (place < one.weights.shape[-1])
    return one.weights.gather(-1, place.clamp(0, one.weights.shape[-1] - 1)[..., None])[..., 0] * inside


def random_text(vocabulary: int, context: int) -> Tensor | None:
    """Two random texts, each repeated once, [2, 2L]; all tokens of a text differ if the vocabulary is large enough."""
    length = min(LONGEST, context // 2)
    if length < SHORTEST:
        return None
    generator = torch.Generator().manual_seed(0)
    if vocabulary >= length:
        rows = [torch.randperm(vocabulary, generator=generator)[:length] for _ in range(2)]
    else:
        rows = [torch.randint(vocabulary, (length,), generator=generator) for _ in range(2)]
    return torch.stack(rows).repeat(1, 2)


def on_random_text(model: LanguageModel, text: Tensor) -> list[list[dict[str, float]]]:
    """The scores ``induction`` and ``positional`` by attention and head; [] for unobservable mechanisms."""
    observed, _ = observe(model, lambda: model.features(text))
    return [[] if one.unobservable else random_scores(one) for one in observed]


def random_scores(attention: Attention) -> list[dict[str, float]]:
    """The scores of each head, from an attention over two random texts of L tokens, each repeated once."""
    length = attention.q.shape[2] // 2
    # The queries of the repetition; the token after the last one is unknown.
    again = torch.arange(length, 2 * length - 1)
    ranges, scores = strip_ranges(attention, 2 * length), []
    for head in range(attention.heads):
        weights = torch.zeros(2, 2 * length, 2 * length)
        for part in ranges:
            weights[:, part.rows, part.columns] = strip(attention, head, part).weights.float().cpu()
        alike = torch.minimum(weights[0, 1:length], weights[1, 1:length]).sum(-1)  # before the repetition
        induction = weights[:, again, again - length + 1]
        scores.append({"induction": float(induction.mean()), "positional": float(alike.mean())})
    return scores


def role(scores: Mapping[str, float | None], spread: float = 0.0, effects: Mapping[str, float] | None = None) -> str:
    """The role of a head, by its weights if they are clear, otherwise by what it does.

    Few heads of a small model put half of their weight on one kind of key. Such a head is named after the kind of key
    without which the loss of the text changes most (``effects``, from `head_effects`): these may also be ``duplicate``
    (earlier occurrences of the token), ``recent`` (a few tokens back) and, in cross-attention, ``diagonal`` (the same
    relative position) and ``end`` (the last token). A head is ``idle`` if nothing that is taken
    from it changes the loss, ``even`` if it attends to all keys alike, and otherwise ``mixed``.
    """
    places = {name: score for name, score in scores.items() if name != "positional" and score is not None}
    if places[best := max(places, key=lambda name: places[name])] >= MOST:
        return best
    if (scores["positional"] or 0.0) >= POSITIONAL:
        return "positional"
    effects = effects or {}
    kinds = {name: effect for name, effect in effects.items() if name != "head"}
    if kinds and abs(kinds[best := max(kinds, key=lambda name: abs(kinds[name]))]) >= NOTABLE:
        return best
    if kinds and abs(effects["head"]) < NOTABLE:
        return "idle"
    return "even" if spread >= EVEN else "mixed"
