"""The logits of a row do not depend on the other rows of its batch, nor on earlier calls."""

import torch

from regard.prove import Case, ClaimResult, ClaimSweep, ModelUnderTest, claim
from regard.prove.comparison import LargestGap
from regard.prove.model_under_test import SEED
from regard.prove.rounding import compare_case


def batching_case(subject: ModelUnderTest, case: Case) -> None:
    """The first and the last row have the logits that they have alone."""
    tokens, index = subject.tokens(case.rows, case.length, case.seed), torch.arange(case.rows, device=subject.device)
    for row in {0, case.rows - 1}:
        one = slice(row, row + 1)
        compare_case(
            subject,
            case,
            lambda one=one: subject(tokens, index)[one],
            lambda one=one: subject(tokens[one], index[one]),
            f"row {row} of {case.rows} and the same row alone",
        )


@claim(
    "batching",
    "a row's logits do not depend on the other rows of its batch",
    order=30,
    reorders_sums=True,
    sweep=ClaimSweep(batching_case, lengths=False),
)
@torch.no_grad()
def batching(subject: ModelUnderTest) -> ClaimResult:
    declared, tokens = subject.not_batch_invariant, subject.tokens(6)
    largest = LargestGap(exempt=declared)
    index = torch.arange(6, device=tokens.device)
    alone = [subject(tokens[i : i + 1], index[i : i + 1]) for i in range(6)]
    others = subject.tokens(6, seed=SEED + 9)
    for rows in ([0, 1], [1, 0], [0, 1, 2, 3, 4, 5], [5, 3, 1], [2, 2, 2]):
        logits = subject(tokens[rows], index[rows])
        for i, row in enumerate(rows):
            largest.add(logits[i : i + 1], alone[row], f"row {row} as number {i} of {len(rows)} rows, and alone")
    for place in (0, 3):
        mixed = others.clone()
        mixed[place] = tokens[0]
        logits = subject(mixed, index.roll(place))
        largest.add(logits[place : place + 1], alone[0], f"among other rows, as number {place} of 6, and alone")
    largest.add(subject(tokens[:1], index[:1]), alone[0], "the same row in a later call")
    note = f" (in training it does not hold, as {declared[0]} declares)" if declared else ""
    return largest.result(f"{largest.count} rows alone and among others{note}")
