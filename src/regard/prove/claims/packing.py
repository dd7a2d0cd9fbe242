"""Documents packed into one row do not attend to each other."""

import torch

from regard.attention import Packed
from regard.prove import ClaimResult, ModelUnderTest, claim, not_applicable
from regard.prove.comparison import LargestGap


@claim("packing", "a document's logits are the same alone and in a packed row", order=40, reorders_sums=True)
@torch.no_grad()
def packing(subject: ModelUnderTest) -> ClaimResult:
    if subject.model is None or not subject.takes_slots:
        return not_applicable("the model takes no packed rows")
    n, largest = subject.length, LargestGap(exempt=subject.not_batch_invariant)
    third = n // 3
    for layout in ([[third, n - third]], [[1, third, n - third - 1], [n - 1]], [[2] * (n // 2), [third, third]]):
        tokens = subject.tokens(len(layout), n)
        known = Packed.of(layout, n, device=tokens.device)
        for note, slots in (("", known), (", lengths unknown to the host", known._replace(documents=None))):
            packed = subject.model(tokens, slots)
            for row, sizes in enumerate(layout):
                start = 0
                for number, size in enumerate(sizes):
                    here = slice(start, start + size)
                    case = f"document {number} (positions {start} to {start + size - 1}) of {sizes}{note}"
                    largest.add(packed[row : row + 1, here], subject(tokens[row : row + 1, here]), case)
                    start += size
    return largest.result(f"{largest.count} documents packed and alone")
