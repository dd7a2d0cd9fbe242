"""``torch.export`` keeps the logits, for the example tokens and for others."""

import logging
import warnings

import torch
from torch import nn

from regard.prove import ClaimResult, ModelUnderTest, claim, not_applicable
from regard.prove.comparison import LargestGap
from regard.prove.model_under_test import SEED


@claim("export", "torch.export keeps the logits", order=140)
@torch.no_grad()
def export(subject: ModelUnderTest) -> ClaimResult:
    module = subject.forward
    if not isinstance(module, nn.Module):
        return not_applicable("a plain function cannot be exported")
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its recurrent layers
        try:
            exported = torch.export.export(module, subject.arguments(subject.tokens(2))).module()
        except Exception as refusal:  # the tracer raises errors of many types
            message = (str(refusal).strip() or type(refusal).__name__).splitlines()[0]
            return not_applicable(f"torch.export refuses it: {type(refusal).__name__}: {message[:120]}")
        largest = LargestGap()
        for case, seed in (("the example tokens", SEED), ("other tokens", SEED + 3)):
            arguments = subject.arguments(subject.tokens(2, seed=seed))
            largest.add(exported(*arguments), module(*arguments), case)
    return largest.result("exported and eager")
