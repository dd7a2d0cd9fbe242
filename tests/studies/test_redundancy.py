"""The study of removed heads: orders of removal, a model in which one head is all that matters, and the words."""

import pytest
import torch

from regard.data import TextBatch
from regard.models import GPTConfig
from regard.models.gpt import GPT
from regard.studies import redundancy
from regard.studies.redundancy import GREEDY, RANDOM, SINGLE, Removals

VALUE = {(0, 0): 0.5, (0, 1): 0.0, (1, 0): 0.1, (1, 1): 0.2}


def additive(removed):
    return 2.0 + sum(VALUE[head] for head in removed)


def redundant(removed):
    """Either head of layer 1 does the work of both."""
    return additive([head for head in removed if head[0]]) + 0.9 * ({(0, 0), (0, 1)} <= set(removed))


def test_greedy_removal_begins_with_the_least_effect():
    assert redundancy.greedy(additive, list(VALUE)) == sorted(VALUE, key=VALUE.__getitem__)
    assert redundancy.losses(additive, [(0, 1), (1, 0)]) == pytest.approx([2.0, 2.0, 2.1])


def test_greedy_removal_notices_that_a_head_replaced_another():
    singles = {head: redundant([head]) - 2 for head in VALUE}
    assert singles[0, 0] == singles[0, 1] == 0  # each by itself could go
    assert redundancy.greedy(redundant, list(VALUE)) == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_removal_ends_where_the_loss_first_rises():
    assert redundancy.removable([2.0, 2.01, 2.04, 2.06, 2.03]) == 2
    assert redundancy.removable([2.0, 2.0, 1.9]) == 2  # all of them
    assert redundancy.removable([2.0, 2.2, 2.0]) == 0


def test_the_one_head_that_matters_is_found_and_kept_to_the_end():
    torch.manual_seed(1)
    model = GPTConfig(vocabulary=11, context=12, width=16, heads=4, layers=2, zero_init=False, tied=False).build()
    assert isinstance(model, GPT)
    with torch.no_grad():
        model.unembed.weight *= 100  # confident predictions
        for layer, block in enumerate(model.blocks.layers):
            columns = block.attention.out.weight.unflatten(1, (4, 4))
            columns *= 1000 * torch.tensor([layer == 1 and head == 2 for head in range(4)])[:, None]
    tokens = torch.randint(11, (8, 13), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # the targets are the model's own predictions, so that its loss is the lowest
        batch = TextBatch(tokens[:, :-1], model(tokens[:, :-1]).argmax(-1))
    found = redundancy.remove_heads(model, [batch], [batch], 1)
    assert found.effects[1, 2] > 0.5
    assert all(abs(effect) < 1e-6 for head, effect in found.effects.items() if head != (1, 2))
    ends = found.curves[GREEDY][0]
    assert ends[-2] == pytest.approx(ends[0], abs=1e-6)
    assert found.all_heads == pytest.approx(found.effects[1, 2], abs=1e-6)
    assert len(found.curves[RANDOM]) == redundancy.ORDERS


def test_the_words_say_how_many_heads_can_go():
    effects = {(0, 0): 0.2, (0, 1): 0.001}

    def said(*random: float) -> str:
        curves = {GREEDY: [[2.0, 2.0, 2.9]], SINGLE: [[2.0, 2.0, 2.9]], RANDOM: [[2.0, one, 2.9] for one in random]}
        return " ".join(redundancy.words([Removals(effects, curves)] * 2))

    better = said(2.2, 2.2)
    assert "of 2, before the loss rises by 0.05 nats: measured again after each removal 1.0 ± 0.0" in better
    assert "random order 0.0 ± 0.0. In every model, removal by measured effect" in better
    assert "1.0 heads of 2 change the loss by less than 0.01 nats; the largest effect is 0.200 (head 1.1" in better
    assert "add up to 0.201 ± 0.000 nats, and removing all heads costs 0.900 ± 0.000. The sum is smaller" in better
    assert "Not in every model" in said(2.0, 2.0)


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(redundancy, "SEEDS", 2)
    monkeypatch.setattr(redundancy, "HEADS", 2)
    found = redundancy.study(0.005, 1, lambda line: None)
    assert [len(one) for one in found.numbers["effects"]] == [6, 6]
    assert all(len(curve) == 7 for one in found.numbers["losses"] for curves in one.values() for curve in curves)
