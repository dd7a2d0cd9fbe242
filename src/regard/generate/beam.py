"""Beam search: of each source the few likeliest beginnings go on, batched over sources.

At each token every beginning offers its continuations, and of a source's offers the best ``2 * beams`` are looked at.
Those among the first ``beams`` that end are finished; the best ``beams`` that do not end go on. A finished text is
ranked by its log-probability over a length penalty (`Search.weight`). A source is done when it has ``beams`` finished
texts and, unless ``early``, none that goes on would beat the worst of them if it ended here. This is the search of
the `transformers` library (length_penalty, early_stopping), whose results it gives.

What makes it fast: the best of V tokens are found among the maxima of blocks of tokens, not by sorting; a beginning
keeps its row when it can, so that only rows whose beginning died are copied; sources that are done leave the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.config import option
from regard.errors import UserError
from regard.generate.sampling import NEVER
from regard.generate.seq2seq import Hypothesis, Rules, Sourced, latest, normaliser
from regard.generate.states import pick, put

BLOCK = 64  # tokens whose maximum stands for them
LEAVE = 8  # sources leave the batch when at least one in so many is done


@dataclass(frozen=True)
class Search:
    """How wide to search, and how texts of different lengths are compared."""

    beams: int = option(5, "how many beginnings go on")
    penalty: float = option(1.0, "how much length is made up for: 0 not at all, above 1 long texts win")
    formula: Literal["mean", "gnmt"] = option("mean", "divide by n^penalty (mean), or ((5 + n) / 6)^penalty (gnmt)")
    early: bool = option(False, "stop at as many finished texts as beams, even if a better one might come")

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1, not {self.beams}")

    def weight(self, length: int) -> float:
        """What the log-probability of a text of ``length`` tokens, its end mark counted, is divided by.

        ``mean`` is n^α, with α = 1 the mean log-probability of a token; ``gnmt`` is Wu et al. 2016, eq. 14.
        """
        return (length if self.formula == "mean" else (5 + length) / 6) ** self.penalty


class Beams(NamedTuple):
    """What is known of B sources with K beams each; every tensor has the sources first."""

    scores: Tensor  # [B, K], the log-probabilities of what goes on; minus infinity: nothing does
    text: Tensor  # [B, K, most], its tokens
    best: Tensor  # [B, K], what is finished is ranked by this, best first; minus infinity: nothing yet
    sums: Tensor  # [B, K], its log-probabilities
    lengths: Tensor  # [B, K]
    texts: Tensor  # [B, K, most]
    open: Tensor  # [B], whether the search goes on

    @classmethod
    def start(cls, batch: int, beams: int, rules: Rules, like: Tensor) -> Beams:
        """One beginning for each source, of no tokens; as the beams are all alike yet, one alone is counted."""
        scores = like.new_full((batch, beams), NEVER)
        text = torch.full((batch, beams, rules.most), rules.specials.pad, device=like.device)
        lengths = text.new_zeros(batch, beams)
        open = torch.ones(batch, dtype=torch.bool, device=like.device)
        first = scores.index_fill(1, lengths.new_zeros(1), 0.0)
        return cls(first, text, scores, scores.clone(), lengths, text.clone(), open)


@torch.inference_mode()
def beam_search(
    model: Sourced, source: Tensor, source_lengths: Tensor, rules: Rules, search: Search, nbest: int = 1
) -> list[list[Hypothesis]]:
    """For each source [B, S] the ``nbest`` best texts that the search found, best first."""
    if not 1 <= nbest <= search.beams:
        raise UserError(
            f"a search with {search.beams} beams finds 1 to {search.beams} texts, not {nbest}; use more beams"
        )
    batch, beams = source.shape[0], search.beams
    state = model.start(batch, rules.most, source=source, source_lengths=source_lengths, beams=beams)
    token = source.new_full((batch * beams, 1), rules.specials.begin)
    numbers = torch.arange(batch, device=source.device)  # which sources are still in the batch
    now = everything = None
    for written in range(rules.most):
        logits, state = model.step(token, state)
        logits = latest(logits)
        if now is None:
            now = Beams.start(batch, beams, rules, logits)
            everything = pick(now, numbers)
        total = normaliser(logits).view(-1, beams)
        offers = best_offers(rules.apply(logits, written).view(*now.scores.shape, -1), total, now.scores, 2 * beams)
        now, parents = advance(now, offers, written + 1, rules, search)
        left = int(now.open.sum()) if written >= rules.least else len(numbers)  # the one question to the device
        if written + 1 == rules.most or not left:
            break
        if LEAVE * left <= (LEAVE - 1) * len(numbers):
            put(everything, numbers, now)
            kept = now.open.nonzero()[:, 0]
            rows = (parents[kept] + kept[:, None] * beams).flatten()
            state = state._replace(shared=pick(state.shared, kept), own=pick(state.own, rows))
            now, numbers = pick(now, kept), numbers[kept]
        elif written:  # the rows of one source were all alike before
            state = state._replace(own=moved(state.own, parents))
        token = now.text[:, :, written].reshape(-1, 1)
    assert now is not None  # at least one token was asked for
    assert everything is not None
    put(everything, numbers, now)
    return read_out(everything, rules, nbest)


def best_offers(logits: Tensor, total: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations [B, count] of each source, best first: their log-probabilities, parents and tokens.

    ``logits`` [B, K, V] with their ``total`` [B, K], of beginnings with ``scores`` [B, K]. Exact: the best ``count``
    tokens lie in the ``count`` blocks with the greatest maxima, since (x - total) + score never falls as x grows.
    """
    beams, vocabulary = logits.shape[1:]
    total, scores = total[..., None], scores[..., None]
    width = BLOCK if vocabulary > 8 * BLOCK else 1
    whole = vocabulary // width * width
    tops = logits[..., :whole].unflatten(-1, (-1, width)).amax(-1) if width > 1 else logits
    if whole < vocabulary:
        tops = torch.cat((tops, logits[..., whole:].amax(-1, keepdim=True)), -1)
    blocks = tops.shape[-1]
    count = min(count, beams * blocks)
    found = ((tops - total) + scores).flatten(1).topk(count)
    if width == 1:
        return found.values, found.indices // vocabulary, found.indices % vocabulary
    parent, block = found.indices // blocks, found.indices % blocks  # [B, count]
    tokens = block[..., None] * width + torch.arange(width, device=logits.device)  # [B, count, width]
    place = (parent * vocabulary)[..., None] + tokens.clamp(max=vocabulary - 1)
    values = logits.flatten(1).gather(1, place.flatten(1)).view(place.shape)
    values = (values - rows_of(total, parent)) + rows_of(scores, parent)
    best = values.masked_fill(tokens >= vocabulary, NEVER).flatten(1).topk(count)
    return best.values, parent.gather(1, best.indices // width), tokens.flatten(1).gather(1, best.indices)


def advance(
    now: Beams, offers: tuple[Tensor, Tensor, Tensor], length: int, rules: Rules, search: Search
) -> tuple[Beams, Tensor]:
    """Take up the offers as the ``length``-th token; gives also the row [B, K] that each one continues."""
    values, parents, tokens = offers
    first = [part[:, : search.beams] for part in offers]
    if length == rules.most:
        return finish(now, first, torch.ones_like(first[2], dtype=torch.bool), length, search), first[1]
    if length <= rules.least:
        values, parents, tokens = first
    else:
        now = finish(now, first, first[2] == rules.specials.end, length, search)
        values, order = values.masked_fill(tokens == rules.specials.end, NEVER).topk(search.beams)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
    order = seats(parents)
    scores, parents, tokens = (part.gather(1, order) for part in (values, parents, tokens))
    now = now._replace(scores=scores, text=continued(now.text, parents, tokens, length))
    top = scores.amax(1)
    done = now.best[:, -1] > NEVER
    if not search.early:
        done &= top / search.weight(length) <= now.best[:, -1]
    return now._replace(open=now.open & ~done & (top > NEVER)), parents


def finish(now: Beams, offers: list[Tensor], ends: Tensor, length: int, search: Search) -> Beams:
    """The offers [B, K] that end are ranked among what is finished, and the best K of both stay."""
    values, parents, tokens = offers
    fresh = (values / search.weight(length)).masked_fill(~(ends & now.open[:, None]), NEVER)
    best, order = torch.cat((now.best, fresh), 1).topk(search.beams)
    text = continued(now.text, parents, tokens, length)
    return now._replace(
        best=best,
        sums=torch.cat((now.sums, values), 1).gather(1, order),
        lengths=torch.cat((now.lengths, torch.full_like(tokens, length)), 1).gather(1, order),
        texts=rows_of(torch.cat((now.texts, text), 1), order),
    )


def continued(text: Tensor, parents: Tensor, tokens: Tensor, length: int) -> Tensor:
    """The texts [B, J, most] of the parents [B, J], each with its ``length``-th token."""
    text = rows_of(text, parents)
    text[:, :, length - 1] = tokens
    return text


def seats(parents: Tensor) -> Tensor:
    """Which of the continuations [B, K] gets which row: the first of a parent its parent's own, others a free one.

    >>> seats(torch.tensor([[2, 2, 0]]))
    tensor([[2, 1, 0]])
    """
    beams = parents.shape[1]
    later = (parents[:, :, None] == parents[:, None, :]).tril(-1).any(-1)
    free = torch.zeros_like(parents).scatter_(1, parents, 1).argsort(dim=1, stable=True)
    seat = torch.where(later, free.gather(1, (later.cumsum(1) - 1).clamp_(min=0)), parents)
    return torch.empty_like(parents).scatter_(1, seat, torch.arange(beams, device=parents.device).expand_as(seat))


def moved(own: Any, parents: Tensor) -> Any:
    """The rows' own state after each took over that of the row [B, K] it continues; most have it already."""
    batch, beams = parents.shape
    base = torch.arange(batch, device=parents.device)[:, None] * beams
    rows = (parents + base).flatten()
    if not parents.is_cpu:
        return pick(own, rows)  # to know which rows changed the host would have to wait
    changed = (rows != torch.arange(len(rows))).nonzero()[:, 0]
    if len(changed):
        put(own, changed, pick(own, rows[changed]))
    return own


def rows_of(text: Tensor, parents: Tensor) -> Tensor:
    """text [B, K, N] of the parents [B, J]: [B, J, N]."""
    return text.gather(1, parents[..., None].expand(-1, -1, text.shape[-1]))


def read_out(beams: Beams, rules: Rules, nbest: int) -> list[list[Hypothesis]]:
    """What was found, on the host."""
    found = []
    columns = (beams.best.tolist(), beams.sums.tolist(), beams.lengths.tolist(), beams.texts.tolist())
    for row in zip(*columns, strict=True):
        ranked = [
            rules.hypothesis(text[:n], score, total)
            for score, total, n, text in zip(*row, strict=True)
            if score > NEVER
        ]
        found.append(ranked[:nbest])
    return found
