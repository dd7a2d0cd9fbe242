"""Graphs: SMILES, tables of edges, what describes a node, batches as pure functions, parts that do not overlap."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from regard.data import SOURCES, Data, GraphBatch, GraphsConfig, LinksConfig, NodesConfig
from regard.data.graphs.edge_table import edge_table, read_edges
from regard.data.graphs.graph import Graph, both_ways, laplacian, returns
from regard.data.graphs.smiles import ELEMENTS, read_smiles
from regard.errors import UserError
from regard.models import GraphConfig

NAMES = "abcdefghijkl"
NODES = "source,target,label\n" + "".join(f"{a},{b},\n" for a, b in zip(NAMES, NAMES[1:] + "a", strict=True))
NODES += "".join(f"{name},,{'x' if name < 'g' else 'y'}\n" for name in NAMES) + "m,,\n"
MOLECULES = ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CC1", "CCCl", "C#N", "OCCO", "CSC", "CBr"]
BONDS = ("single", "double", "triple", "aromatic")


@pytest.fixture
def nodes(tmp_path: Path) -> NodesConfig:
    (tmp_path / "nodes.csv").write_text(NODES)
    return NodesConfig(path=str(tmp_path / "nodes.csv"), validation=0.2, test=0.2, laplacian=2)


@pytest.fixture
def links(tmp_path: Path) -> LinksConfig:
    draw = random.Random(1)
    rows = {(f"n{draw.randrange(9)}", f"n{draw.randrange(9)}", f"r{draw.randrange(3)}") for _ in range(60)}
    lines = ["source\ttarget\tkind", *("\t".join(row) for row in sorted(rows))]
    (tmp_path / "links.tsv").write_text("\n".join(lines) + "\n")
    return LinksConfig(path=str(tmp_path / "links.tsv"))


@pytest.fixture
def graphs(tmp_path: Path) -> GraphsConfig:
    rows = [f"{smiles},{number / 4}" for number, smiles in enumerate(MOLECULES * 2)]
    (tmp_path / "molecules.csv").write_text("smiles,solubility\n" + "\n".join(rows) + "\n")
    return GraphsConfig(path=str(tmp_path / "molecules.csv"), walks=2, laplacian=1, degree=True)


def bonds(smiles: str) -> set[tuple[int, int, str]]:
    return {(a, b, BONDS[kind]) for a, b, kind in read_smiles(smiles).edges.tolist() if a < b}


def atoms(smiles: str) -> list[tuple[str, float, float]]:
    """Element, hydrogens and charge of each atom."""
    graph = read_smiles(smiles)
    kinds = [(*ELEMENTS, "?")[kind] for kind in graph.nodes]
    return list(zip(kinds, graph.numbers[:, 1].tolist(), graph.numbers[:, 3].tolist(), strict=True))


def test_smiles_are_read_as_their_specification_says() -> None:
    assert atoms("CC(=O)O") == [("C", 3, 0), ("C", 0, 0), ("O", 0, 0), ("O", 1, 0)]
    assert bonds("CC(=O)O") == {(0, 1, "single"), (1, 2, "double"), (1, 3, "single")}
    assert atoms("[NH4+].[Cl-]") == [("N", 4, 1), ("Cl", 0, -1)]
    assert atoms("[13C@@H](F)(Cl)Br")[0] == ("C", 1, 0)
    assert atoms("[Fe++]") == atoms("[Fe+2]") == [("?", 0, 2)]
    assert atoms("CS(=O)(=O)C")[1] == ("S", 0, 0)
    assert [one[1] for one in atoms("c1cc[nH]c1")] == [1, 1, 1, 1, 1]
    assert bonds("C%12CC%12") == bonds("C1CC1") == {(0, 1, "single"), (1, 2, "single"), (0, 2, "single")}
    assert bonds("C=1CC1") == {(0, 1, "single"), (1, 2, "single"), (0, 2, "double")}
    assert bonds("F/C=C/F") == {(0, 1, "single"), (1, 2, "double"), (2, 3, "single")}
    biphenyl = read_smiles("c1ccccc1c1ccccc1")  # the bond between two rings is in none
    assert sorted(biphenyl.edges[:, 2].tolist()) == [0, 0] + [3] * 24
    assert read_smiles("CC1CC1C").numbers[:, 5].tolist() == [0, 1, 1, 1, 0]
    assert read_smiles("C1CC1CC1CC1").numbers[:, 5].tolist() == [1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("text", ["", "C(", "C)", "C1CC", "1CC", "C==", "C$$x", "[C", "C11", "=", "hello", "()", "CC,"])
def test_what_is_no_smiles_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="is no SMILES"):
        read_smiles(text)


@given(st.integers(0, 10**6))
def test_damaged_smiles_and_tables_are_read_or_refused(tmp_path_factory, seed: int) -> None:
    """100 mutations of each: never an error of another type."""
    draw = random.Random(seed)
    path = tmp_path_factory.mktemp("damaged") / "edges.csv"
    for _ in range(4):
        text = list(draw.choice(MOLECULES))
        for _ in range(draw.randint(1, 3)):
            text[draw.randrange(len(text))] = draw.choice("CcN()[]123=#%+-@/\\.Hé ")
        content = bytearray(NODES.encode())
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([None, draw.randrange(len(content))])])
        with suppress(UserError):
            read_smiles("".join(text))
        with suppress(UserError):
            NodesConfig(path=str(path)).build(0)


def test_a_table_of_edges_and_what_is_wrong_with_one(tmp_path: Path) -> None:
    path = tmp_path / "edges.tsv"
    path.write_bytes(edge_table([("a", "b", "likes"), ("b", "c", "knows")], {"a": "x", "c": "y"}, "kind"))
    found = read_edges(path)
    assert found.names == ("a", "b", "c")
    assert found.kinds == ("knows", "likes")
    assert found.edges.tolist() == [[0, 1, 1], [1, 2, 0]]
    assert found.labels == {0: "x", 2: "y"}
    for content, words in (
        ("from\tto\na\tb\n", "no source or target"),
        ("source\ttarget\tlabel\na\t\tx\na\t\ty\n", "an earlier one as x"),
        ("source\ttarget\tpart\na\tb\tdev\n", "choose from train, validation, test"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=words):
            read_edges(path)
    path.write_text("source\ttarget\tlabel\na\tb\tx\n")
    with pytest.raises(UserError, match="give at least two"):
        NodesConfig(path=str(path)).build(0)


def example(edges: list[tuple[int, int]], count: int) -> Graph:
    array = both_ways(np.array([(a, b, 0) for a, b in edges]))
    return Graph(np.zeros(count, np.int64), array, np.zeros((count, 0), np.float32))


def test_what_describes_a_node_by_its_formula() -> None:
    graph = example([(0, 1), (1, 2), (2, 0), (2, 3)], 5)
    near = graph.adjacency
    degree = near.sum(1)
    assert degree.tolist() == [2, 2, 3, 1, 0]
    found = returns(near, 3)
    walk = np.divide(near, degree[:, None], out=np.zeros((5, 5)), where=degree[:, None] > 0)
    for step in range(3):
        np.testing.assert_allclose(found[:, step], np.linalg.matrix_power(walk, step + 1).diagonal())
    vectors = laplacian(near, 3)
    root = degree.clip(1) ** -0.5
    matrix = np.eye(5) - root[:, None] * near * root
    values = np.linalg.eigvalsh(matrix)
    for number in range(3):
        np.testing.assert_allclose(matrix @ vectors[:, number], values[number + 1] * vectors[:, number], atol=1e-12)
    np.testing.assert_allclose(np.square(vectors).mean(0), 1)
    assert laplacian(near[:2, :2], 4)[:, 1:].tolist() == [[0, 0, 0]] * 2


def test_signs_of_eigenvectors_do_not_depend_on_the_order_of_nodes() -> None:
    near = example([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (1, 6)], 7).adjacency
    vectors = laplacian(near, 2)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(7)
        np.testing.assert_allclose(laplacian(near[order][:, order], 2), vectors[order], atol=1e-9)


def equal(one: GraphBatch, other: GraphBatch) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["nodes", "links", "graphs"])
def test_batches_are_pure_functions_and_parts_of_one(kind: str, request: pytest.FixtureRequest) -> None:
    config = request.getfixturevalue(kind)
    data, again = config.build(0), config.build(0)
    assert data.sha256 == again.sha256
    assert equal(data.batch(3, seed=2, size=4), again.batch(3, seed=2, size=4))
    assert not equal(data.batch(3, seed=2, size=4), data.batch(4, seed=2, size=4))

    def counted(batches: list[GraphBatch]) -> list[float]:
        found = torch.cat([batch.targets.flatten().double() for batch in batches])
        return sorted(found[(found >= 0) & found.isfinite()].tolist())

    whole = counted([data.batch(0, seed=5, size=4)])
    assert counted([data.batch(0, seed=5, size=2, rank=rank, world=2) for rank in range(2)]) == whole
    assert len(whole) == 4
    for part, count in (("validation", data.validation_count), ("test", data.test_count)):
        batches = {"validation": data.validation_batches, "test": data.test_batches}[part]
        assert len(counted(list(batches(3)))) == count > 0
        ranks = [list(batches(2, rank=rank, world=2)) for rank in range(2)]
        assert len(ranks[0]) == len(ranks[1])
        assert counted([*ranks[0], *ranks[1]]) == counted(list(batches(3)))
    assert GraphConfig().reading(None, data.shape).numbers == data.batch(0, seed=1, size=2).inputs.shape[2]
    assert data.held_out(2)


def test_the_parts_of_labelled_nodes_are_disjoint_and_can_be_named(nodes: NodesConfig) -> None:
    data = nodes.build(0)
    parts = [set(part.tolist()) for part in data.parts.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 12
    held = replace(nodes, held=("b",), validation=0.0).build(0)
    assert held.parts["test"].tolist() == [1]
    assert 1 not in held.parts["train"]
    with pytest.raises(UserError, match="no node of"):
        replace(nodes, held=("z",)).build(0)
    assert (data.batch(0, seed=1, size=4).edges[0, :, :2] == torch.tensor([0, 1])).all(1).any()
    directed = replace(nodes, directed=True).build(0).graph.edges
    assert len(directed) * 2 == len(data.graph.edges)
    signs = {tuple(data.batch(step, seed=1, size=2).inputs[0, 0].sign().tolist()) for step in range(20)}
    assert len(signs) > 1  # of the eigenvectors, in training only
    assert equal(next(data.test_batches(9)), next(data.test_batches(9)))
    still = replace(nodes, random_signs=False).build(0)
    for step in range(20):
        assert still.batch(step, seed=1, size=2).inputs.equal(next(still.test_batches(9)).inputs)


def test_a_file_of_ones_own_is_numbered_as_the_graph_of_the_training(nodes: NodesConfig, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("source,target\nf,a\n")
    example = nodes.read_examples(other, GraphConfig())[0]
    assert example.parts == ("f", "a")
    assert example.batch.nodes.tolist() == [[5, 0]]
    other.write_text("source,target\nf,stranger\n")
    with pytest.raises(UserError, match="identity false"):
        nodes.read_examples(other, GraphConfig())
    assert replace(nodes, identity=False).read_examples(other, GraphConfig())[0].batch.nodes.tolist() == [[0, 0]]


def test_a_batch_of_questions_never_sees_their_answers(links: LinksConfig) -> None:
    data = links.build(0)
    relations = len(data.kinds)
    assert relations == 3
    for step in range(5):
        batch = data.batch(step, seed=1, size=6)
        assert batch.queries is not None
        edges = set(map(tuple, batch.edges[0].tolist()))
        for (head, kind), tail in zip(batch.queries[0].tolist(), batch.targets[0].tolist(), strict=True):
            assert (head, tail, kind) not in edges
            assert (tail, head, (kind + relations) % (2 * relations)) not in edges
    held = next(data.test_batches(4))
    assert len(held.edges[0]) == data.count
    assert held.queries is not None
    assert held.known is not None
    everything = {tuple(row) for part in data.parts.values() for row in part.tolist()}
    for place, (head, kind) in enumerate(held.queries[0].tolist()):
        known = set(held.known[0, place].nonzero()[:, 0].tolist()) | {int(held.targets[0, place])}
        assert known == {tail for one, tail, other in everything if (one, other) == (head, kind)}


def test_molecules_have_values_or_classes(graphs: GraphsConfig, tmp_path: Path) -> None:
    data = graphs.build(0)
    assert data.values is not None
    assert data.values.dtype == np.float32
    assert data.shape is not None
    assert data.shape[3] == 6 + 4
    labelled = replace(graphs, classes=True).build(0)
    assert len(labelled.labels) == 20
    assert labelled.values is None
    (tmp_path / "some.smi").write_text("CCO ethanol\n\nCC\n")
    assert [one.name for one in graphs.read_examples(tmp_path / "some.smi", GraphConfig())] == ["CCO", "CC"]
    assert graphs.read_examples(Path("C/C=C/C"), GraphConfig())[0].batch.nodes.shape == (1, 4)
    for content, words in (("smiles,solubility\nCC(,1\n", "row 1 of"), ("smiles,other\nCC,1\n", "needs a column")):
        (tmp_path / "molecules.csv").write_text(content)
        with pytest.raises(UserError, match=words):
            graphs.build(0)
    (tmp_path / "molecules.csv").write_text("smiles,solubility\nCC,much\n")
    with pytest.raises(UserError, match="is no number"):
        graphs.build(0)


def test_a_graph_too_large_for_its_matrix_is_refused(nodes: NodesConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.graphs.graph.MOST", 5)
    with pytest.raises(UserError, match=r"too large for --data\.degree"):
        nodes.build(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["karate", "les-miserables", "pubmed", "dblp", "umls", "kinships", "solubility"])
def test_the_sources_are_what_they_say(name: str, tmp_path: Path) -> None:
    config: dict[str, type] = {"nodes": NodesConfig, "links": LinksConfig, "graphs": GraphsConfig}
    data: Data = config[SOURCES[name].labels](source=name).build(0, tmp_path)
    counts = {
        "karate": (34, 27), "les-miserables": (77, 406), "pubmed": (19717, 15773), "dblp": (17716, 14172),
        "umls": (135, 10432), "kinships": (104, 17088), "solubility": (47, 922),
    }  # fmt: skip
    assert data.shape is not None
    assert (data.shape[0], data.count) == counts[name]  # type: ignore[attr-defined]
