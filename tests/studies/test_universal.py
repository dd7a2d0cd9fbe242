"""The study of what a Transformer fits: the tables, the bounds of models without a part, and words that follow."""

from itertools import permutations

import pytest
import torch

from regard.studies import universal
from regard.studies.universal import PARTS, SEEN, Fit, encoder, fit, least_error, tables


@pytest.fixture(scope="module")
def functions():
    return tables(1)


def test_tables_are_what_they_are_called(functions):
    assert {len(function) for function in functions.values()} == {256}
    assert functions["rank"][3, 0, 2, 0] == (3, 0, 2, 0)
    assert functions["rank"][1, 1, 3, 1] == (0, 0, 3, 0)
    assert functions["reverse"][0, 1, 2, 3] == (3, 2, 1, 0)
    for name in ("random without order", "rank"):  # f of permuted tokens is f, permuted
        for order in permutations(range(4)):
            row, out = (0, 2, 1, 2), functions[name][0, 2, 1, 2]
            assert functions[name][tuple(row[n] for n in order)] == tuple(out[n] for n in order)
    assert functions["random"] != tables(2)["random"]


def test_bounds_are_those_of_known_cases(functions):
    order, place = (SEEN[PARTS[part][1]] for part in ("no positions", "no attention"))
    assert [least_error(function, SEEN["whole"]) for function in functions.values()] == [0] * 4
    assert least_error(functions["rank"], order) == 0
    assert least_error(functions["random without order"], order) == 0
    assert least_error(functions["random"], order) > 0.4
    assert least_error(functions["reverse"], place) == pytest.approx(0.75)  # it would have to guess
    identity = {row: row for row in functions["reverse"]}
    assert least_error(identity, place) == least_error(identity, order) == 0


def test_a_model_without_a_part_sees_what_its_bound_says():
    """The outputs of untrained models, so that a bound is never too low."""
    rows = torch.tensor([[0, 1, 2, 3], [0, 3, 1, 2]])  # the first token has the same others, in another order
    for part, same in (("no positions", True), ("no attention", True), ("everything", False)):
        torch.manual_seed(1)
        first = encoder(16, 2, PARTS[part][0]).build()(rows)[:, 0]
        assert torch.allclose(first[0], first[1], atol=1e-6) == same
    torch.manual_seed(1)
    alone = encoder(16, 2, PARTS["no attention"][0]).build()(torch.tensor([[0, 1, 2, 3], [0, 1, 1, 1]]))[:, :2]
    assert torch.allclose(alone[0], alone[1], atol=1e-6)


def test_words_follow_from_the_errors():
    names = ("random", "rank")
    errors: dict[str, dict[str, float]] = {part: dict.fromkeys(names, 0.0) for part in PARTS}
    limits: dict[str, dict[str, float]] = {part: dict.fromkeys(names, 0.0) for part in PARTS}
    limits["no positions"]["random"] = errors["no positions"]["random"] = 0.6
    limits["no attention"] = {"random": 0.5, "rank": 0.3}
    errors["no attention"] = {"random": 0.6, "rank": 0.4}
    errors["no residual path"] = {"random": 0.7, "rank": 0.0}
    said = " ".join(universal.words({1: [Fit(0.5, 100), Fit(0.25, 900)]}, errors, limits))
    assert "1 layer 50.0%, 25.0%. The lowest is 25.0%, with 900 parameters." in said
    assert "the least that is possible: random 60.0%, rank 0.0%, which it reaches for 'random' and 'rank'." in said
    assert "the least that is possible: random 50.0%, rank 30.0%, which it does not reach." in said
    assert "With no feed-forward network: random 0.0%, rank 0.0%; it fits all of them." in said
    assert "nothing forbids these functions, and it does not fit 'random'." in said


@pytest.mark.slow
def test_order_needs_positions(functions):
    whole, blind = (fit(encoder(32, 2, PARTS[part][0]), functions["reverse"], 200, 1) for part in list(PARTS)[:2])
    bound = least_error(functions["reverse"], SEEN[PARTS["no positions"][1]])
    assert whole.error < 0.05
    assert bound <= blind.error < 0.75
