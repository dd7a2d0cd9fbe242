"""Padding changes no answer: whatever stands in it, and however much there is."""

from __future__ import annotations

import torch

from regard.prove.differ import Worst
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "a row's logits are the same with padding behind it, and however much"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    if not subject.pads:
        return unasked("the model sees both ways and cannot be told where a row ends; give padded=...")
    n, worst = subject.length, Worst()
    tokens = subject.tokens(5)
    lengths = torch.tensor([3, n, n // 2, 1, n - 1], device=tokens.device)
    real = torch.arange(n, device=tokens.device) < lengths[:, None]
    every = torch.arange(5, device=tokens.device)
    alone = [subject(tokens[i : i + 1, :m], every[i : i + 1])[0] for i, m in enumerate(lengths.tolist())]
    fills = {"tokens": tokens, "zeros": tokens.masked_fill(~real, 0), "others": subject.others(tokens)}
    for name, fill in fills.items():
        given = torch.where(real, tokens, fill)
        for rows in ([0, 1, 2, 3, 4], [0, 2, 3]):  # behind the longest of them, and behind one of half the length
            width = int(lengths[rows].max())
            some = subject.padded(given[rows, :width], lengths[rows], every[rows])
            for i, row in enumerate(rows):
                m = int(lengths[row])
                case = f"a row of {m} tokens padded to {width} with {name}"
                worst.add(some[i : i + 1, :m], alone[row][None], case)
    if worst.found:
        return fails(worst.found)
    how = "" if subject.behind or subject.takes_slots or subject.takes_source else " (behind, where nobody looks)"
    return holds(f"rows of {lengths.tolist()} tokens, three fillings{how}: at most {worst.size:.1g} apart")
