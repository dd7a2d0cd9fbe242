"""Subclasses of Softmax: `look` shows the weights that they define, not those of the softmax."""

from __future__ import annotations

import pytest
import torch
from session_kit import TEXT, dense, gpt
from torch import Tensor

from regard.attention import Out, Plan, Softmax
from regard.errors import UserError
from regard.look import attentions, heads
from regard.look.views.session import Session


class Difference(Softmax):
    """Of two attentions (as in Ye et al. 2024, eq. 1), so that weights may be negative."""

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        return 3 * super().weights(q, k, plan) - 2 * super().weights(-q, k, plan)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        return Out(self.weights(q, k, plan) @ v)


class Doubled(Softmax):
    """Its weights are not those of the softmax, and it does not define them."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        return Out(2 * super().forward(q, k, v, plan).values)


def session(mechanism: type[Softmax]) -> Session:
    made = gpt()
    for name, _ in made.model.mechanisms():
        made.model.set_submodule(name, mechanism())
    return made


def test_the_weights_of_a_subclass_are_shown() -> None:
    trace = session(Difference).trace(TEXT)
    weights = dense(trace.attentions[0])[1]
    assert float(weights.min()) < -0.5
    assert float(weights.max()) > 1
    for query in (0, 20):
        row = trace.row(0, 1, query)
        assert row["visible_keys"] == query + 1
        share = weights[query].abs() / weights[query].abs().sum()
        assert row["entropy"] == pytest.approx(float(torch.special.entr(share).sum()), abs=1e-5)
        shown = torch.zeros(len(TEXT))
        for key, weight in row["weights"]:
            shown[key] = weight
        torch.testing.assert_close(shown, weights[query].clamp(min=0))
    with pytest.raises(UserError, match="does not follow from one score"):
        trace.cell(0, 1, 20, 3)


def test_a_map_shows_weights_above_one_as_one_and_below_zero_as_zero() -> None:
    trace = session(Difference).trace(TEXT)
    (maps, _), weights = trace.overview(64, 600.0), dense(trace.attentions[0])
    expected = weights.clamp(0, 1).sqrt().mul(255).round()
    torch.testing.assert_close(torch.from_numpy(maps[0].astype("float32")), expected, atol=1, rtol=0)


def test_a_subclass_with_a_forward_of_its_own_has_no_weights_but_its_own() -> None:
    assert Softmax().unobservable is None
    assert Difference().unobservable is None
    assert "does not define the weight of each key" in (Doubled().unobservable or "")


def test_negative_weights_are_no_collapse() -> None:
    """An entropy of minus infinity would be one for the doctor."""
    model = session(Difference).model
    tokens = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    assert all(0.1 < head.spread <= 1 for head in heads(attentions(model, lambda: model(tokens))))
