"""Documents packed into one row do not see each other."""

from __future__ import annotations

import torch

from regard.attention import Packed
from regard.prove.differ import Worst
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "a document's logits are the same alone and in a packed row"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    if not subject.takes_slots:
        return unasked("rows of this model hold one text each: it takes no packed ones")
    n, worst = subject.length, Worst()
    third = n // 3
    layouts = [[[third, n - third]], [[1, third, n - third - 1], [n - 1]], [[2] * (n // 2), [third, third]]]
    for layout in layouts:
        tokens = subject.tokens(len(layout), n)
        known = Packed.of(layout, n, device=tokens.device)
        for told, slots in (("", known), (", lengths unknown to the host", known._replace(documents=None))):
            packed = subject.model(tokens, slots)
            for row, documents in enumerate(layout):
                start = 0
                for number, size in enumerate(documents):
                    here = slice(start, start + size)
                    alone = subject(tokens[row : row + 1, here])
                    case = f"document {number} (places {start} to {start + size - 1}) of {documents}{told}"
                    worst.add(packed[row : row + 1, here], alone, case)
                    start += size
    if worst.found:
        declared = subject.named("batch_invariant")
        if declared:
            return unasked(f"declared not to hold by {', '.join(declared)}; seen: {worst.found}")
        return fails(worst.found)
    return holds(f"{worst.count} documents packed and alone: at most {worst.size:.1g} apart")
