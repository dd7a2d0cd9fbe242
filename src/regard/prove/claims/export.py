"""``torch.export`` keeps the logits, on the tokens it saw and on others."""

from __future__ import annotations

import logging
import warnings

import torch
from torch import Tensor, nn

from regard.prove.differ import Worst
from regard.prove.subject import SEED, Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "torch.export keeps the logits"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    module = subject.model if subject.model is not None else subject.forward
    if not isinstance(module, nn.Module):
        return unasked("a bare function cannot be exported")
    shown = _given(subject, subject.tokens(2))
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its recurrent layers
        try:
            exported = torch.export.export(module, shown).module()
        except Exception as refusal:  # whatever a tracer meets
            told = (str(refusal).strip() or type(refusal).__name__).splitlines()[0]
            return unasked(f"torch.export refuses it: {type(refusal).__name__}: {told[:120]}")
        worst = Worst()
        for told, seed in (("the tokens it was shown", SEED), ("other tokens", SEED + 3)):
            given = _given(subject, subject.tokens(2, seed=seed))
            worst.add(exported(*given), module(*given), told)
    return fails(worst.found) if worst.found else holds(f"exported and as it is: at most {worst.size:.1g} apart")


def _given(subject: Subject, tokens: Tensor) -> tuple[Tensor, ...]:
    if not subject.takes_source:
        return (tokens,)
    return (tokens, *subject.sources.pick(torch.arange(len(tokens), device=tokens.device)))
