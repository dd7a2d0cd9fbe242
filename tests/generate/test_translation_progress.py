"""The progress of a translation: lines are counted when their batch is decoded, not when it is their turn."""

import pytest
import torch

from regard.data import BytesConfig
from regard.data.base import Specials
from regard.generate import BeamSearch
from regard.generate.translation import Translator
from regard.models import TransformerConfig


@pytest.mark.parametrize(("batch", "counts"), [(2, [2, 4, 5]), (8, [5])])
def test_decoded_lines_are_counted_before_the_first_is_given(batch: int, counts: list[int]):
    torch.manual_seed(1)
    model = TransformerConfig(vocabulary=260, context=12, layers=1, heads=2, width=8).build().eval()
    made = Translator(
        model, BytesConfig().build([]), Specials(256, 257, 258), strategy=BeamSearch(1), max_length=3, batch=batch
    )
    seen: list[int] = []
    lines = iter(made.translate(["abcde", "abcd", "abc", "ab", "a"], seen.append))
    next(lines)
    assert seen == counts
    assert len(list(lines)) == 4
