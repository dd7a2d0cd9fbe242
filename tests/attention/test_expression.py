"""Mask expressions: every mask there is can be written and read back, and nothing else can be read."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any, get_type_hints

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from regard.attention import And, Blocks, Causal, EdgeList, Edges, Full, Global, Mask, Not, Or, Prefix, Same, Window
from regard.attention.masks.expression import names, parse, write
from regard.errors import UserError

TABLES = {
    Same: [[0, 2, 1], [[0, 1], [1, 1]]],
    Edges: [[[0, 1], [1, 1]]],
    Blocks: [[[1, 0], [0, 1]]],
    EdgeList: [[0, 3], [1]],
}


def values(cls: type[Mask], hint: Any) -> st.SearchStrategy[Any]:
    if "Tensor" in str(hint):
        tables = st.sampled_from(TABLES[cls])
        return tables.map(lambda rows: torch.tensor(rows, dtype=torch.long if cls in (Same, EdgeList) else torch.bool))
    if str(hint).startswith("tuple[tuple"):
        three = st.tuples(*[st.integers(0, 9)] * 3)
        return st.lists(three, min_size=1, max_size=2).map(tuple)
    if str(hint).startswith("tuple"):
        return st.lists(st.integers(0, 30), max_size=3).map(tuple)
    return {int: st.integers(1, 40), bool: st.booleans()}[hint]


@st.composite
def leaves(draw: st.DrawFn) -> Mask:
    cls = draw(st.sampled_from(list(names().values())))
    hints = get_type_hints(cls)
    given = {one.name: draw(values(cls, hints[one.name])) for one in fields(cls) if one.init}  # type: ignore[arg-type]
    try:
        return cls(**given)
    except ValueError:  # sizes that do not go together
        return Causal()


def grown(inner: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
    two = st.tuples(inner, inner)
    both = [two.map(lambda pair: operator.and_(*pair)), two.map(lambda pair: operator.or_(*pair))]
    return st.one_of(*both, inner.map(operator.invert))


def same(one: Any, two: Any) -> bool:
    """Equal in every part; tensors by their numbers."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.tolist() == two.tolist()
    if not isinstance(one, Mask):
        return one == two
    return type(one) is type(two) and all(same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))  # type: ignore[arg-type]


@example(Causal() & (Window(2) & Prefix(1)))
@example(Causal() | (Window(2) | Prefix(1)))
@example((Causal() | Window(2)) & ~(Prefix(1) & Causal()))
@given(st.recursive(leaves(), grown, max_leaves=7))
def test_what_is_written_is_read_back(mask: Mask) -> None:
    text = write(mask)
    assert same(parse(text), mask), text
    assert write(parse(text)) == text


@given(leaves(), leaves(), leaves())
def test_operators_bind_as_in_python(a: Mask, b: Mask, c: Mask) -> None:
    one, two, three = write(a), write(b), write(c)
    assert same(parse(f"{one} | {two} & ~{three}"), a | (b & ~c))
    assert same(parse(f" ~({one} | {two})\n & {three}"), ~(a | b) & c)


def test_every_mask_has_a_name() -> None:
    assert {Full, Causal, Window, Prefix, Global, Same, Edges, Blocks} <= set(names().values())
    assert not {And, Or, Not} & set(names().values())


def test_arguments_by_place_by_name_and_in_a_row() -> None:
    assert parse("window(8, ahead=2)") == Window(8, 2)
    assert parse("WINDOW(ahead = 2, size = 8)") == Window(8, 2)
    assert parse("global(0, 5)") == parse("global([0, 5])") == parse("Global((0, 5))") == Global((0, 5))
    assert write(Window(8, 2)) == "window(8, 2)"
    assert write(Same(torch.arange(100)), brief=True) == "same(<100>)"


WRONG = {
    "": "empty",
    "causal & windw(8)": "no mask 'windw'; did you mean window? (position 10)",
    "causal and window(8)": "with &, | and ~, not with words (position 1)",
    "window": "window(size, ahead=0) cannot take these arguments",
    "window(0)": "size >= 1",
    "window([1, 2])": "expected a single number",
    "window(8, size=9)": "cannot take these arguments",
    "window(size=8, size=9)": "each argument is named once",
    "window(8, behind=1)": "'behind'",
    "  causal & window(1.5)": "an integer or a list of integers (position 19)",
    "causal & (window(8)": "cannot be parsed (position 10)",
    "causal causal": "cannot be parsed",
    "causal + causal": "expected a mask",
    "causal.mask": "expected a mask",
    "same(3)": "expected a list of numbers",
    "edges([[1], [0, 1]])": "cannot take these arguments",
    f"window({10**30})": "too large (position 8)",
    "same(['a'])": "is an integer",
    "caus\0al": "cannot be parsed",
    "(" * 400: "cannot be parsed",
    "~" * 9000 + "causal": "cannot be parsed",
    "causal" * 9000: "at most 10,000",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:24])
def test_a_mistake_is_named_with_its_place(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert WRONG[text] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "(lambda: causal)()", "[causal for x in y]", "open('x')", "window(x:=3)"],
)
def test_nothing_is_evaluated(text: str) -> None:
    with pytest.raises(UserError):
        parse(text)
