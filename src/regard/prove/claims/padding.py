"""Padding changes no logit, whatever tokens it holds and however long it is."""

import torch

from regard.prove import Case, ClaimResult, ClaimSweep, ModelUnderTest, claim, not_applicable
from regard.prove.comparison import LargestGap
from regard.prove.rounding import compare_case


def padding_case(subject: ModelUnderTest, case: Case) -> None:
    """Every other row ends after the first piece of the case, and has the logits that it has without padding."""
    tokens, index = subject.tokens(case.rows, case.length, case.seed), torch.arange(case.rows, device=subject.device)
    real = case.pieces[0]
    lengths = torch.where(index % 2 == 0, real, case.length)
    compare_case(
        subject,
        case,
        lambda: subject.with_padding(tokens, lengths, index)[::2, :real],
        lambda: subject(tokens[::2, :real], index[::2]),
        f"rows of {real} tokens padded to {case.length}, and unpadded",
    )


@claim(
    "padding",
    "a row's logits do not depend on the padding behind it",
    order=20,
    reorders_sums=True,
    sweep=ClaimSweep(padding_case, pieces=2, rows=False),
)
@torch.no_grad()
def padding(subject: ModelUnderTest) -> ClaimResult:
    if subject.reads_arrays:
        return not_applicable("the test arrays have no padding")
    if not subject.pads:
        return not_applicable("the model is bidirectional and takes no lengths; give padded=...")
    n, largest, tokens = subject.length, LargestGap(), subject.tokens(5)
    lengths = torch.tensor([3, n, n // 2, 1, n - 1], device=tokens.device)
    real = torch.arange(n, device=tokens.device) < lengths[:, None]
    index = torch.arange(5, device=tokens.device)
    alone = [subject(tokens[i : i + 1, :m], index[i : i + 1]) for i, m in enumerate(lengths.tolist())]
    fills = {"tokens": tokens, "zeros": torch.zeros_like(tokens), "other tokens": subject.other_tokens(tokens)}
    for name, fill in fills.items():
        filled = torch.where(real, tokens, fill)
        for rows in ([0, 1, 2, 3, 4], [0, 2, 3]):  # padded to the full length, and to half of it
            width = int(lengths[rows].max())
            logits = subject.with_padding(filled[rows, :width], lengths[rows], index[rows])
            for i, row in enumerate(rows):
                m = int(lengths[row])
                largest.add(logits[i : i + 1, :m], alone[row], f"a row of {m} tokens padded to {width} with {name}")
    note = "" if subject.padded or subject.model is not None else " (behind, where a causal model does not look)"
    return largest.result(f"rows of {lengths.tolist()} tokens, three fillings{note}")
