"""The graph Transformer: order-free, the same with tables and lists of edges, and exact for padded graphs."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from regard.attention import GATConfig, LinearConfig, WindowConfig
from regard.errors import UserError
from regard.models import GraphConfig, GraphTransformer, graph
from regard.models.graph import shortest_paths
from regard.nn.heads import ClassesHeadConfig, LinksHeadConfig, NoHeadConfig, ValuesHeadConfig

CONFIG = GraphConfig(width=16, heads=4, layers=2, kinds=5, edge_kinds=3, numbers=4, zero_init=False)
CONFIGS = {
    "local": CONFIG,
    "gat": replace(CONFIG, attention=GATConfig()),
    "values": replace(CONFIG, head=ValuesHeadConfig(2), numbers=0),
    "all": replace(CONFIG, local=False, distances=3),
    "links": replace(CONFIG, head=LinksHeadConfig(3)),
}


def built(name: str) -> GraphTransformer:
    torch.manual_seed(1)
    model = CONFIGS[name].build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 8)
    assert isinstance(model, GraphTransformer)
    return model


def tokens(seed: int, count: int = 9, rows: int = 3) -> Tensor:
    return torch.randint(64, (rows, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
@given(st.integers(0, 99))
def test_nodes_in_another_order_have_the_same_outputs(name: str, seed: int) -> None:
    """Permutation equivariance over nodes; of a whole graph, invariance."""
    model = built(name)
    numbers, nodes, edges, *asked = model.inputs_of(tokens(seed))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    place = order.argsort()
    moved = torch.cat((place[edges[..., :2].clamp(min=0)], edges[..., 2:]), -1)
    moved = torch.where(edges[..., :1] >= 0, moved, -1).flip(1)  # in another order, too
    asked_moved = [torch.stack((place[one[..., 0]], one[..., 1]), -1) for one in asked]
    expected, found = (
        model(numbers, nodes, edges, *asked),
        model(numbers[:, order], nodes[:, order], moved, *asked_moved),
    )
    if name == "links":
        expected = expected[:, :, order]
    elif name != "values":
        expected = expected[:, order]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["local", "gat", "values", "links"])
@given(st.integers(0, 99))
def test_lists_of_edges_are_tables(name: str, seed: int) -> None:
    model = built(name)
    inputs, small = model.inputs_of(tokens(seed)), graph.DENSE
    expected = model(*inputs)
    try:
        graph.DENSE = 4
        torch.testing.assert_close(model(*inputs), expected, atol=1e-10, rtol=1e-10)
    finally:
        graph.DENSE = small


@pytest.mark.parametrize("name", ["local", "gat", "values", "all"])
@pytest.mark.parametrize("most", [4, 512])
def test_a_padded_graph_has_the_outputs_that_it_has_alone(name: str, most: int, monkeypatch) -> None:
    model = built(name)
    if name != "all":
        monkeypatch.setattr(graph, "DENSE", most)
    numbers, nodes, edges = model.inputs_of(tokens(3, 6, 1))
    alone = model(numbers, nodes, edges)
    more = torch.nn.functional.pad
    other = model.inputs_of(tokens(4, 9, 1))
    longest = max(edges.shape[1], other[2].shape[1])
    batch = [
        torch.cat((more(numbers, (0, 0, 0, 3), value=7.0), other[0])),
        torch.cat((more(nodes, (0, 3), value=-1), other[1])),
        torch.cat([more(one, (0, 0, 0, longest - one.shape[1]), value=-1) for one in (edges, other[2])]),
    ]
    found = model(*batch)[:1]
    torch.testing.assert_close(found if name == "values" else found[:, :6], alone, atol=1e-10, rtol=1e-10)


def test_several_edges_between_two_nodes_add_up_and_a_kind_matters() -> None:
    model = built("local")
    numbers, nodes, _ = model.inputs_of(tokens(1, 4, 1))

    def outputs(*edges: tuple[int, int, int]) -> Tensor:
        return model(numbers, nodes, torch.tensor([list(edges)]))

    assert not torch.allclose(outputs((0, 1, 0), (0, 2, 0)), outputs((0, 1, 1), (0, 2, 0)))
    assert not torch.allclose(outputs((0, 1, 0), (0, 2, 0)), outputs((0, 1, 0), (0, 1, 1), (0, 2, 0)))
    torch.testing.assert_close(outputs((0, 1, 0))[:, 1:], outputs((0, 2, 0))[:, 1:])  # edges have a direction


def test_shortest_paths_of_a_line_and_of_two_parts() -> None:
    near = torch.eye(6, dtype=torch.bool)
    for one in (0, 1, 2, 3):
        near[one, one + 1] = near[one + 1, one] = True
    found = shortest_paths(near[None], 4)[0]
    assert found[0, 2:].tolist() == [2, 3, 4, 4]
    assert found[5, :5].tolist() == [4] * 5


def test_impossible_graphs_are_refused_in_a_sentence() -> None:
    for change, words in (
        ({"distances": 3}, "set local = false"),
        ({"local": False, "distances": 1}, "at least 2"),
        ({"head": NoHeadConfig()}, "the head of a graph model"),
        ({"head": ClassesHeadConfig(2, pool="cls")}, "no class token"),
        ({"attention": WindowConfig()}, "which nodes do not have"),
        ({"attention": LinearConfig()}, "softmax or gat"),
    ):
        with pytest.raises(UserError, match=words):
            replace(CONFIG, **change).build()
    with pytest.raises(UserError, match="choose --data nodes"):
        CONFIG.reading(None, (3, 8, 8))
    model = built("local")
    with pytest.raises(UserError, match="4 numbers each, not 2"):
        model(torch.zeros(1, 3, 2).double(), torch.zeros(1, 3).long(), torch.zeros(1, 0, 3).long())
    far = built("all")
    with pytest.raises(UserError, match="too large for distances"):
        far(torch.zeros(1, 600, 4).double(), torch.zeros(1, 600).long(), torch.zeros(1, 0, 3).long())
