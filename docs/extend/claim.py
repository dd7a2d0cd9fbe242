"""A claim of `regard prove`: permuting the rows of a batch permutes the logits and changes nothing else.

regard prove shakespeare-small --with claim.py --claims rows
"""

import torch

from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds


@claim("rows", "the order of the rows of a batch does not matter")
@torch.no_grad()
def rows(subject: ModelUnderTest) -> ClaimResult:
    tokens = subject.tokens(4)
    order = torch.tensor([2, 0, 3, 1], device=tokens.device)
    every = torch.arange(4, device=tokens.device)
    gap = float((subject(tokens, every)[order] - subject(tokens[order], every[order])).abs().max())
    return holds(f"{gap:.1g} at most") if gap < 1e-4 else fails(f"a logit changes by {gap:.3g}")
