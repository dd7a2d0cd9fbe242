"""``torch.export`` with dynamic shapes keeps the logits, for the example and for other tokens, lengths and rows."""

import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.prove import ClaimResult, ModelUnderTest, claim, not_applicable
from regard.prove.comparison import LargestGap
from regard.prove.model_under_test import SEED
from regard.prove.registry import first_line

OTHERS = (1, 2, 3, 5, 9, 16, 17)  # lengths and numbers of rows beside those of the example
Exported = Callable[..., Tensor]


@claim("export", "torch.export keeps the logits, at other lengths too", order=140)
@torch.no_grad()
def export(subject: ModelUnderTest) -> ClaimResult:
    module = subject.forward
    if not isinstance(module, nn.Module):
        return not_applicable("a plain function cannot be exported")
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its recurrent layers
        exported, refusal = _exported(module, subject)
        if exported is None:
            return not_applicable(f"torch.export refuses it: {refusal}")
        largest = LargestGap()
        for case, seed in (("the example tokens", SEED), ("other tokens", SEED + 3)):
            arguments = subject.arguments(subject.tokens(3, seed=seed))
            largest.add(exported(*arguments), module(*arguments), case)
        fixed = _other_shapes(subject, exported, module, largest)
    note = f" (the exported graph is fixed to the shape of the example: {fixed})" if fixed else ""
    shapes = "" if fixed else f" for {largest.count - 2} other shapes"
    return largest.result(f"exported and eager{shapes}{note}")


def _exported(module: nn.Module, subject: ModelUnderTest) -> tuple[Exported | None, str]:
    """The exported graph, with a dynamic length if that is possible; or why it is refused.

    With full effort every size is dynamic, which takes twice as long.
    """
    arguments, refusal = subject.arguments(subject.tokens(3)), ""
    every = subject.effort == "full"
    axes = [range(x.ndim) if every else (1,) if x is arguments[0] else () for x in arguments]
    if subject.reads_arrays:  # such as the positions of one grid
        axes = [(0,)] * len(arguments)
    dynamic = tuple(dict.fromkeys(some, torch.export.Dim.AUTO) for some in axes)
    for shapes in (dynamic, None):
        try:
            return torch.export.export(module, arguments, dynamic_shapes=shapes).module(), ""
        except Exception as error:  # the tracer raises errors of many types
            refusal = first_line(error)[:140]
    return None, refusal


def _other_shapes(subject: ModelUnderTest, exported: Exported, module: nn.Module, largest: LargestGap) -> str:
    """Compare other lengths and batch sizes; return why the graph refuses them, if it does."""
    lengths = sorted({*(n for n in OTHERS if n < subject.length), subject.length - 1, subject.long})
    shapes = [(2, subject.length)] if subject.reads_arrays else [(3, n) for n in lengths]
    if subject.effort == "full":
        shapes += [(rows, subject.length) for rows in OTHERS]
    refusal = ""
    for rows, length in shapes:
        arguments = subject.arguments(subject.tokens(rows, length, SEED + 4))
        try:
            found = exported(*arguments)
        except Exception as error:  # a guard on the shape
            refusal = refusal or first_line(error)[:90]
            continue
        largest.add(found, module(*arguments), f"{rows} rows of {length} tokens, exported with 3 of {subject.length}")
    return refusal
