"""A row's answer does not depend on its neighbours, nor on what was asked before."""

from __future__ import annotations

import torch

from regard.prove.differ import Worst
from regard.prove.subject import SEED, Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "a row's logits are the same whatever stands in the other rows"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    worst, tokens = Worst(), subject.tokens(6)
    every = torch.arange(6, device=tokens.device)
    alone = [subject(tokens[i : i + 1], every[i : i + 1]) for i in range(6)]
    company = subject.tokens(6, seed=SEED + 9)
    for rows in ([0, 1], [1, 0], [0, 1, 2, 3, 4, 5], [5, 3, 1], [2, 2, 2]):
        some = subject(tokens[rows], every[rows])
        for i, row in enumerate(rows):
            worst.add(some[i : i + 1], alone[row], f"row {row} as number {i} of {len(rows)} rows, and alone")
    for place in (0, 3):
        mixed = company.clone()
        mixed[place] = tokens[0]
        rows = every.roll(place) if place else every
        some = subject(mixed, rows)
        worst.add(some[place : place + 1], alone[0], f"among other rows, as number {place} of 6, and alone")
    worst.add(subject(tokens[:1], every[:1]), alone[0], "the same row asked again later")
    if worst.found:
        declared = subject.named("batch_invariant")
        if declared:
            return unasked(f"declared not to hold by {', '.join(declared)}; seen: {worst.found}")
        return fails(worst.found)
    declared = subject.named("batch_invariant")
    note = f"; in training it does not, as {declared[0]} declares" if declared else ""
    return holds(f"{worst.count} rows alone and among others: at most {worst.size:.1g} apart{note}")
