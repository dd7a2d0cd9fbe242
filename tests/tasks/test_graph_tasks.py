"""Tasks of graphs and regression: losses and measures by their definitions, and runs from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.cli import main
from regard.data import GraphBatch, GraphsConfig, ImagesConfig, LinksConfig, NodesConfig
from regard.errors import UserError
from regard.models import GraphConfig, ViTConfig
from regard.nn.heads import LinksHeadConfig, TokenClassesHeadConfig, ValuesHeadConfig
from regard.tasks import LinkPredictionConfig, NodeClassificationConfig, RegressionConfig
from regard.tasks.arrays import ArrayClassificationConfig

MODEL = GraphConfig(width=16, heads=2, layers=1, kinds=5, numbers=3, zero_init=False)
TINY = (
    "--model.layers",
    "1",
    "--model.width",
    "16",
    "--model.heads",
    "2",
    "--train.steps",
    "6",
    "--train.device",
    "cpu",
)
EDGES = torch.tensor([[[0, 1, 0], [1, 0, 0], [1, 2, 0], [2, 1, 0]]])


def batch(targets: torch.Tensor, rows: int = 1) -> GraphBatch:
    generator = torch.Generator().manual_seed(1)
    nodes = torch.tensor([[0, 1, 2, 3]]).expand(rows, -1)
    return GraphBatch(torch.randn(rows, 4, 3, generator=generator), targets, nodes, EDGES.expand(rows, -1, -1))


def test_the_classes_of_the_nodes_that_count() -> None:
    model = replace(MODEL, head=TokenClassesHeadConfig(3)).build()
    task = NodeClassificationConfig(labels=("a", "b", "c")).build()
    given = batch(torch.tensor([[2, -1, 0, -1]]))
    term = task.terms(model, given)["node"]
    want = F.cross_entropy(model(*given.arguments)[0, [0, 2]], torch.tensor([2, 0]), reduction="sum")
    torch.testing.assert_close(term.total, want)
    assert int(term.count) == int(task.counts(given)["node"]) == 2  # type: ignore[arg-type]
    assert [(one.part, one.record["given"]) for one in task.predictions(model, given)] == [(0, "c"), (2, "a")]
    every = task.predictions(model, given._replace(targets=torch.full((1, 4), -1)))
    assert [one.part for one in every] == [0, 1, 2, 3]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_regression_by_its_definition(loss: str) -> None:
    model = replace(MODEL, head=ValuesHeadConfig(2)).build()
    config = RegressionConfig(loss=loss, means=(1.0, -2.0), deviations=(2.0, 0.5))
    task = config.build()
    targets = torch.tensor([[1.5, torch.nan], [-3.0, 0.0], [torch.nan, torch.nan]])
    given = batch(targets, rows=3)
    term, sums = task.measured(model, given)
    found = (model(*given.arguments) * torch.tensor([2.0, 0.5]) + torch.tensor([1.0, -2.0])).detach().numpy()
    known = [(0, 0), (1, 0), (1, 1)]
    errors = np.array([found[at] - targets[at].item() for at in known])
    scaled = errors / np.array([2.0, 2.0, 0.5])
    total = (scaled**2).sum() if loss == "squared" else np.abs(scaled).sum()
    assert float(term["error"].total.detach()) == pytest.approx(total, rel=1e-5)
    assert int(term["error"].count) == int(task.counts(given)["error"]) == 3
    measures = task.metrics(sums)
    assert measures["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert measures["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    answers = [one.record["values"] for one in task.predictions(model, given)]
    np.testing.assert_allclose(answers, found, rtol=1e-5)


def test_r2_is_one_minus_the_share_of_the_variance() -> None:
    model = replace(MODEL, head=ValuesHeadConfig(1)).build()
    task = RegressionConfig(means=(3.0,), deviations=(2.0,)).build()
    given = batch(torch.tensor([[1.0], [4.0], [2.0], [9.0]]), rows=4)
    given = given._replace(inputs=given.inputs * torch.arange(4.0)[:, None, None])
    halves = [
        given._replace(**{n: x[part] for n, x in given._asdict().items() if x is not None}) for part in ([0, 1], [2, 3])
    ]
    sums = torch.stack([task.measured(model, half)[1] for half in halves]).sum(0)
    found = (model(*given.arguments) * 2 + 3).detach().double().flatten()
    targets = given.targets.double().flatten()
    want = 1 - (found - targets).square().sum() / (targets - targets.mean()).square().sum()
    assert task.metrics(sums)["r2"] == pytest.approx(float(want), rel=1e-5)


def test_ranks_are_filtered_and_ties_share_them() -> None:
    task = LinkPredictionConfig(labels=tuple("abcd")).build()
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 5.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]])

    class Fixed(torch.nn.Module):
        def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
            return scores[None, :, :, None]

    targets = torch.tensor([[2, 0, 1, -1]])
    known = torch.zeros(1, 4, 4, dtype=torch.bool)
    given = batch(targets)._replace(queries=torch.zeros(1, 4, 2, dtype=torch.long))
    terms, sums = task.measured(Fixed(), given)
    want = F.cross_entropy(scores[:3], targets[0, :3], reduction="sum")
    torch.testing.assert_close(terms["link"].total, want)
    assert int(task.counts(given)["link"]) == 3
    assert task.metrics(sums)["mrr"] == pytest.approx((1 / 3 + 1 / 2.5 + 1) / 3)
    known[0, 0, 0] = True  # another right answer with a better score
    filtered = task.metrics(task.measured(Fixed(), given._replace(known=known))[1])
    assert filtered["mrr"] == pytest.approx((1 / 2 + 1 / 2.5 + 1) / 3)
    assert filtered["hits_1"] == pytest.approx(1 / 3)
    assert filtered["hits_3"] == filtered["hits_10"] == 1
    assert task.predictions(Fixed(), given)[0].record["label"] == "a"
    assert task.predictions(Fixed(), given._replace(known=known))[0].record["label"] == "b"


def test_tasks_refuse_data_and_models_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("source,target,label\na,b,x\nb,c,y\nc,a,x\nd,a,y\n")
    nodes, links = NodesConfig(path=str(path)).build(0), LinksConfig(path=str(path)).build(0)
    images = ImagesConfig(source="digits").build(0)
    for task, data, words in (
        (NodeClassificationConfig(), links, "a graph with labels"),
        (LinkPredictionConfig(), nodes, "triples: --data links"),
        (RegressionConfig(), nodes, "needs numbers"),
        (RegressionConfig(), images, "needs numbers"),
    ):
        with pytest.raises(UserError, match=words):
            task.fit(data)
    with pytest.raises(UserError, match="--model graph"):
        NodeClassificationConfig().fit(nodes).model_for(ViTConfig(), nodes)
    with pytest.raises(UserError, match="no head for numbers"):
        ViTConfig().with_values(1)
    assert LinkPredictionConfig().fit(links).model_for(MODEL, links) == replace(MODEL, head=LinksHeadConfig(2))
    labelled = ArrayClassificationConfig().fit(nodes)
    assert labelled.labels == ("x", "y")


def read(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["karate", "umls", "solubility"])
def test_a_run_from_end_to_end(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small data of one's own in the recipe: train, evaluate, predict for held-out examples and a file, look, prove."""
    ring = [(f"n{i}", f"n{(i + 1) % 12}", "next" if i % 2 else "other", "x" if i < 6 else "y") for i in range(12)]
    table = "source,target,kind,label\n" + "".join(",".join(row) + "\n" for row in ring)
    smiles = ["CCO", "CCN", "CCC", "CCCl", "CC=O", "C1CC1", "c1ccccc1", "CCBr", "CO", "CN", "CS", "CF"]
    values = "smiles,solubility\n" + "".join(f"{one},{len(one)}\n" for one in smiles)
    path = tmp_path / "data.csv"
    path.write_text(values if name == "solubility" else table)
    run = str(tmp_path / "run")
    options = ("--data.path", str(path), "--data.validation", "0.2", "--data.test", "0.2", "--data.batch", "4")
    assert main(["train", name, "--runs", str(tmp_path), "--name", "run", *TINY, *options]) == 0
    capsys.readouterr()
    best = {"karate": "accuracy", "umls": "mrr", "solubility": "rmse"}[name]
    assert main(["evaluate", run, "--part", "test", "--json"]) == 0
    assert best in read(capsys)
    assert main(["predict", run, "--json"]) == 0
    held_out = read(capsys)["predictions"]
    assert held_out
    assert all("given" in one for one in held_out)
    if name == "umls":
        path = tmp_path / "questions.csv"
        path.write_text("source,kind\nn1,next\n")
    assert main(["predict", run, str(path), "--json"]) == 0
    answers = read(capsys)["predictions"]
    assert len(answers) == {"karate": 12, "umls": 1, "solubility": 12}[name]
    if name == "karate":
        assert [one["part"] for one in answers] == [f"n{i}" for i in range(12)]
    assert main(["look", run, "--json"]) == 0
    found = read(capsys)
    drawn = Path(found["picture"]).read_text()
    assert drawn.startswith("<svg")
    assert drawn.count("<line") == {"karate": 24, "umls": 14, "solubility": drawn.count("<line")}[name] > 0
    assert ("n3" in drawn) == (name != "solubility")
    assert main(["prove", run, "--claims", "order,batching,accumulation,checkpoint"]) == 0


def test_a_held_out_molecule_is_drawn_as_a_graph_of_its_bonds(tmp_path: Path) -> None:
    data = GraphsConfig(path=str(tmp_path / "m.csv"))
    (tmp_path / "m.csv").write_text("smiles,solubility\n" + "".join(f"{'C' * n}O,{n}\n" for n in range(1, 9)))
    shown = data.build(0).shown()
    assert shown is not None
    assert shown.batch.nodes.shape[1] >= 2
