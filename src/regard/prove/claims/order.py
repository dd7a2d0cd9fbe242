"""The order of tokens matters exactly when positions are on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.nn import NoPositionConfig
from regard.prove.differ import ROUNDING, gap
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "the order of tokens matters if, and only if, positions are on"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    on = _positions(subject)
    if subject.causal:
        return _causal(subject, on)
    tokens = subject.tokens(3)
    turn = torch.randperm(subject.length, generator=torch.Generator().manual_seed(5)).to(tokens.device)
    apart = gap(subject(tokens[:, turn]), subject(tokens)[:, turn])
    if on and not apart.clear:
        if not _listens(subject):
            return unasked("each place's logits depend on its own token only (weights at their start?)")
        return fails(f"tokens in another order get the same logits in that order, to {apart.size:.1g}: a bag of tokens")
    if not on and apart.clear:
        return fails(f"positions are off, and yet tokens in another order get other logits: {apart}")
    return holds(f"tokens in another order get {'other' if on else 'the same'} logits: {apart.size:.2g} apart")


def _positions(subject: Subject) -> bool:
    if subject.positions is not None:
        return subject.positions
    return not isinstance(getattr(getattr(subject.model, "config", None), "position", None), NoPositionConfig)


def _listens(subject: Subject) -> bool:
    """Whether the last place hears of the first tokens at all."""
    tokens, n = subject.tokens(2), subject.length
    other = tokens.clone()
    other[:, : n - 1] = subject.others(tokens)[:, : n - 1]
    return gap(subject(tokens)[:, -1:], subject(other)[:, -1:], ROUNDING).clear


def _causal(subject: Subject, on: bool) -> Verdict:
    if not on:
        return unasked("what a causal model sees grows from place to place: it knows the order even without positions")
    if not _listens(subject):
        return unasked("no place hears of earlier tokens (weights at their start?)")
    tokens = subject.tokens(3)
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    apart = gap(subject(tokens)[:, -1:], subject(turned)[:, -1:])
    if not apart.clear:
        return fails(f"earlier tokens in reverse order leave the last logits as they were, to {apart.size:.1g}")
    if bare := _without(subject):
        idle = gap(subject(tokens), bare(tokens))
        if not idle.clear:
            return fails(f"without its positions the model gives the same logits, to {idle.size:.1g}: they do nothing")
    return holds(f"earlier tokens in reverse order move the last logits by {apart.size:.2g}")


def _without(subject: Subject) -> Any:
    """The same model made without positions; none where it has no such choice."""
    config: Any = getattr(subject.model, "config", None)
    if not subject.takes_slots or not hasattr(config, "position") or subject.model.position.token_width(8) != 8:
        return None
    bare = replace(config, position=NoPositionConfig()).build()
    bare.load_state_dict(subject.model.state_dict(), strict=False)
    return bare.to(subject.device).eval()
