"""The order of tokens matters exactly if the model has positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.models.base import Model
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.comparison import Gap, gap, reverse_context
from regard.prove.rounding import exact, real_gap


@claim("order", "the order of tokens matters if, and only if, the model has positions", order=70)
@torch.no_grad()
def order(subject: ModelUnderTest) -> ClaimResult:
    positional = subject.positional is not False
    if subject.causal:
        return _causal(subject, positional)
    tokens = subject.tokens(3)
    shuffle = torch.randperm(subject.length, generator=torch.Generator().manual_seed(5)).to(tokens.device)
    apart = _apart(subject, lambda: subject(tokens[:, shuffle]), lambda: subject(tokens)[:, shuffle])
    if positional and not apart.clear:
        if not _uses_context(subject):
            return not_applicable("the logits of a position depend on its own token only (untrained weights?)")
        return fails(f"shuffled tokens get the same logits, shuffled, to {apart.size:.1g}: a bag of tokens")
    if not positional and apart.clear:
        return fails(f"the model has no positions, and yet shuffled tokens get other logits: {apart}")
    return holds(f"shuffled tokens get {'other' if positional else 'the same'} logits: {apart.size:.2g} apart")


def _apart(subject: ModelUnderTest, one: Callable[[], Tensor], other: Callable[[], Tensor]) -> Gap:
    """The gap between two ways to compute logits; a small one is clear as well if it is not rounding."""
    found = gap(one(), other())
    return found if found.clear else real_gap(subject, one, other, exact(subject)) or found


def _uses_context(subject: ModelUnderTest) -> bool:
    """Whether the last logits depend on earlier tokens at all."""
    tokens = subject.tokens(2)
    other = torch.cat((subject.other_tokens(tokens)[:, :-1], tokens[:, -1:]), dim=1)
    return gap(subject(tokens)[:, -1:], subject(other)[:, -1:]).clear


def _causal(subject: ModelUnderTest, positional: bool) -> ClaimResult:
    if not positional:
        return not_applicable("a causal mask reveals the order even without positions: each token sees one more")
    if not _uses_context(subject):
        return not_applicable("no logit depends on earlier tokens (untrained weights?)")
    tokens = subject.tokens(3)
    reverse = reverse_context(tokens)
    apart = _apart(subject, lambda: subject(tokens)[:, -1:], lambda: subject(reverse)[:, -1:])
    if not apart.clear:
        return fails(f"earlier tokens in reverse order leave the last logits unchanged, to {apart.size:.1g}")
    bare = _without_positions(subject)
    if bare is not None:
        idle = gap(subject(tokens), bare(*subject.arguments(tokens)))
        if not idle.clear:
            return fails(f"without its positions the model gives the same logits, to {idle.size:.1g}")
    return holds(f"earlier tokens in reverse order move the last logits by {apart.size:.2g}")


def _without_positions(subject: ModelUnderTest) -> Model | None:
    """The same model and weights without positions; None if it has no such choice or its weights would not fit."""
    config = None if subject.model is None else subject.model.config.without_positions()
    if config is None or subject.model is None:
        return None
    bare, weights = config.build(), subject.model.state_dict()
    shapes = {name: weight.shape for name, weight in bare.state_dict().items()}
    if any(name not in weights or weights[name].shape != shape for name, shape in shapes.items()):
        return None
    bare.load_state_dict({name: weights[name] for name in shapes})
    return bare.to(subject.device).eval()
