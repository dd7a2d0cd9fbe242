"""Sizes are solved for: parameter counts, refusals."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.models import GPTConfig, ModelConfig, RecurrentConfig, describe
from regard.models.shapes import build_on_meta
from regard.plan.size import CLOSE, Counted, parameters_without_embeddings, with_parameters
from regard.recipes import get

MODELS = {
    name: get(name).model for name in ("shakespeare", "shakespeare-lstm", "shakespeare-conv", "translate-transformer")
}


@pytest.mark.parametrize("name", MODELS)
@given(factor=st.floats(0.15, 8))
@settings(max_examples=5, deadline=None)
def test_the_count_is_met_within_two_percent(name: str, factor: float) -> None:
    model = MODELS[name]
    count = describe(model)["parameters"] * factor
    found = with_parameters(model, count)
    assert type(found) is type(model)
    assert describe(found)["parameters"] == pytest.approx(count, rel=CLOSE)


@given(factor=st.floats(0.1, 16))
@settings(max_examples=10, deadline=None)
def test_only_width_layers_and_heads_change(factor: float) -> None:
    model = GPTConfig(heads=8, kv_heads=4, width=256)
    found = with_parameters(model, 3e6 * factor)
    own = {name: getattr(model, name) for name in ("width", "layers", "heads", "kv_heads")}
    assert replace(found, **own) == model
    assert found.heads == 2 * (found.kv_heads or 0)
    assert 1 / 1.5 <= found.width / found.heads / 32 <= 1.5 or found.heads == 2


def test_the_own_size_changes_nothing() -> None:
    for model in MODELS.values():
        assert with_parameters(model, describe(model)["parameters"]) == model


def test_layers_are_kept_where_a_width_is_close() -> None:
    model = GPTConfig(layers=8, width=256, heads=8)
    for factor in (1 / 16, 16):
        assert with_parameters(model, describe(model)["parameters"] * factor).layers == 8


@pytest.mark.parametrize(("tied", "tables"), [(True, 0), (False, 65 * 64)])
def test_tables_that_are_no_matrices_are_no_parameters_of_a_size(tied: bool, tables: int) -> None:
    model = GPTConfig(vocabulary=65, width=64, tied=tied, ngrams=2, buckets=128)
    whole = describe(model)["parameters"]
    assert parameters_without_embeddings(build_on_meta(model)) == whole - tables - 128 * 64
    counted: Counted = "without_embeddings"
    assert with_parameters(model, whole - tables - 128 * 64, counted=counted) == model


@pytest.mark.parametrize(
    ("model", "count", "words"),
    [
        (RecurrentConfig(), 20, "the smallest recurrent with these parts has .* parameters, and 20 were asked for"),
        (get("emoji-clip").model, 1e6, "a two-towers has no width and layers"),
    ],
)
def test_refusals(model: ModelConfig, count: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        with_parameters(model, count)
