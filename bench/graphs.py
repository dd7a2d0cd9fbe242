"""Graph models of this library beside those of PyTorch Geometric and DistMult: same data, task, optimizer and steps.

    python -m bench.graphs karate                        leave-one-out of the karate club, 10 seeds
    python -m bench.graphs pubmed --model gat            or regard; classes from citations alone
    python -m bench.graphs umls --model distmult         or regard; filtered ranks
    python -m bench.graphs solubility --model gps        or gat, regard
    python -m bench.graphs pubmed --model gat --rates 1e-3 3e-3 1e-2    the best of these learning rates

Each line is JSON: the measures on the test part at the step with the best validation. PyTorch Geometric is only needed
for its models. Only the network differs between the models of a data set; the loop below trains all of them. With
``--rates`` each rate is trained with the first seed and measured on the validation part alone; all seeds then have the
best one. ``--blind`` never looks at the test part: it is for choosing options.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.recipes import recipe
from regard.tasks import Measured
from regard.train import Experiment
from regard.train.evaluate import measure
from regard.train.precision import Precision

CPU = Precision("auto", torch.device("cpu"))


def fit(model: Any, experiment: Experiment, data: Any, seed: int, rate: float, test: bool = True) -> dict[str, float]:
    """Train; the measures on the test part with the weights that were best on the validation part.

    Without ``test``, those on the validation part.
    """
    task, train = experiment.task.fit(data).build(), experiment.train
    assert train.steps is not None
    assert isinstance(task, Measured)
    assert task.best is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    best, at, found, begun, used = -math.inf, train.steps, {}, time.perf_counter(), time.process_time()
    torch.manual_seed(seed)
    for step in range(train.steps):
        for group in optimizer.param_groups:  # linear warmup, then a cosine to a tenth
            share = step / train.steps
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * share))
        model.train()
        (term,) = task.terms(model, data.batch(step, seed=seed, size=experiment.data.batch)).values()
        optimizer.zero_grad()
        (term.total / term.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % (train.evaluate_every or train.steps) == 0 or step + 1 == train.steps:
            if not data.validation_count:
                continue
            _, now = measure(model, task, data.validation_batches(experiment.data.batch), CPU)
            if now[task.best] > best:
                best, at, found = now[task.best], step + 1, now
                if test:
                    _, found = measure(model, task, data.test_batches(experiment.data.batch), CPU)
    if not data.validation_count:
        _, found = measure(model, task, data.test_batches(experiment.data.batch), CPU)
    found = {**({} if best == -math.inf else {f"validation_{task.best}": best}), **found}
    times = {"seconds": round(time.perf_counter() - begun, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    count = sum(parameter.numel() for parameter in model.parameters())
    return {**{name: round(value, 4) for name, value in found.items()}, "at": at, "parameters": count, **times}


def flat(nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Edges [2, E] as PyTorch Geometric has them, from the seen node to the one that sees it, kinds, and real nodes."""
    row, place = (edges[..., 0] >= 0).nonzero(as_tuple=True)
    query, key, kind = edges[row, place].unbind(-1)
    start = row * nodes.shape[1]
    return torch.stack((start + key, start + query)), kind, (nodes >= 0).flatten()


class GAT(nn.Module):
    """Two or more GATConv layers with ELU, as in the paper; the features of the nodes are embedded as ours are."""

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int, layers: int, dropout: float, whole: bool):
        super().__init__()
        from torch_geometric.nn import GATConv  # pyright: ignore[reportMissingImports]

        _, kinds, edge_kinds, numbers = shape
        self.embed = nn.Embedding(kinds, width)
        self.numbers = nn.Linear(numbers, width) if numbers else None
        self.kinds, self.dropout, self.whole = nn.Embedding(edge_kinds, 16), dropout, whole
        self.layers = nn.ModuleList(
            GATConv(width, width // 8, heads=8, dropout=dropout, edge_dim=16 if whole else None) for _ in range(layers)
        )
        self.out, self.summed = nn.Linear(width, outputs), False

    def forward(self, numbers: Tensor, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.embed(nodes.clamp(min=0))
        x = x if self.numbers is None else x + self.numbers(numbers)
        index, kind, real = flat(nodes, edges)
        y = x.flatten(0, 1)
        for layer in self.layers:
            y = F.dropout(y, self.dropout, self.training)
            y = F.elu(layer(y, index, self.kinds(kind) if self.whole else None))
        return self.out(self.pool(y.view(*x.shape), real.view(*nodes.shape)))

    def pool(self, y: Tensor, real: Tensor) -> Tensor:
        return (y * real[..., None]).sum(1) / (1 if self.summed else real.sum(1, keepdim=True)) if self.whole else y


class GPS(GAT):
    """GPSConv layers: GINE along the edges and attention between all nodes (Rampášek et al. 2022)."""

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int, layers: int, dropout: float, whole: bool):
        super().__init__(shape, outputs, width, 0, dropout, whole)
        from torch_geometric.nn import GINEConv, GPSConv  # pyright: ignore[reportMissingImports]

        def gine() -> Any:
            return GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), edge_dim=16)

        self.layers = nn.ModuleList(GPSConv(width, gine(), heads=4, dropout=dropout) for _ in range(layers))

    def forward(self, numbers: Tensor, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.embed(nodes.clamp(min=0))
        x = x if self.numbers is None else x + self.numbers(numbers)
        index, kind, real = flat(nodes, edges)
        graph = torch.arange(len(nodes)).repeat_interleave(nodes.shape[1])[real]
        y, place = x.flatten(0, 1)[real], real.long().cumsum(0) - 1  # without padding
        for layer in self.layers:
            y = layer(y, place[index], batch=graph, edge_attr=self.kinds(kind))
        whole = x.new_zeros(len(real), y.shape[1]).index_put((real,), y)
        return self.out(self.pool(whole.view(*nodes.shape, -1), real.view(*nodes.shape)))


class DistMult(nn.Module):
    """Σ head · relation · tail (Yang et al. 2015, eq. 4), with a relation of its own for each direction, as ours."""

    def __init__(self, shape: tuple[int, ...], width: int, dropout: float):
        super().__init__()
        self.nodes, self.relations = nn.Embedding(shape[1], width), nn.Embedding(shape[2], width)
        self.dropout = dropout
        for table in (self.nodes, self.relations):
            nn.init.normal_(table.weight, std=width**-0.25)

    def forward(self, numbers: Tensor, nodes: Tensor, edges: Tensor, queries: Tensor) -> Tensor:
        x = F.dropout(self.nodes.weight, self.dropout, self.training)
        asked = x[queries[..., 0]] * self.relations(queries[..., 1])
        return (asked @ x.T)[..., None]


def network(name: str, experiment: Experiment, data: Any, outputs: int, whole: bool) -> nn.Module:
    """The model of that name for these data, with the sizes of the recipe's."""
    given: Any = experiment.model
    if name == "regard":
        return experiment.task.fit(data).model_for(given.reading(None, data.shape), data).build()
    if name == "distmult":
        return DistMult(data.shape, given.width, given.dropout)
    kind = {"gat": GAT, "gps": GPS}[name]
    made = kind(data.shape, outputs, given.width, given.layers, given.dropout, whole)
    made.summed = given.head.pool == "sum"
    return made


def karate(options: argparse.Namespace) -> None:
    """Each member held out once, for each seed: how many of 34 are right."""
    experiment, totals = recipe("karate", "--data.validation=0"), []
    members = experiment.data.read().labels  # type: ignore[attr-defined]
    names = experiment.data.read().names  # type: ignore[attr-defined]
    for seed in options.seeds:
        wrong = []
        for member in members:
            data = replace(experiment.data, held=(names[member],)).build(0)  # type: ignore[type-var,call-arg]
            torch.manual_seed(seed)
            model = network("regard", experiment, data, 2, False)
            if fit(model, experiment, data, seed, experiment.train.optimizer.lr)["accuracy"] < 1:  # type: ignore[attr-defined]
                wrong.append(names[member])
        totals.append(34 - len(wrong))
        print(json.dumps({"data": "karate", "seed": seed, "right": totals[-1], "wrong": wrong}), flush=True)
    print(json.dumps({"data": "karate", "mean": sum(totals) / len(totals), "seeds": len(totals)}), flush=True)


def main() -> None:
    """Run one data set and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["karate", "pubmed", "umls", "solubility"])
    parser.add_argument("--model", default="regard", choices=["regard", "gat", "gps", "distmult"])
    parser.add_argument("--seeds", type=int, nargs="*", default=None)
    parser.add_argument("--set", action="append", default=[], help="options of the recipe, such as --train.steps=50")
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="learning rates to choose from")
    parser.add_argument("--blind", action="store_true", help="measure on the validation part only")
    options = parser.parse_args()
    options.seeds = options.seeds or list(range(1, 11 if options.data == "karate" else 4))
    torch.set_num_threads(1)
    if options.data == "karate":
        return karate(options)
    experiment = recipe(options.data, *options.set)
    data, whole = experiment.data.build(0), options.data == "solubility"

    def run(seed: int, rate: float, test: bool) -> dict[str, float]:
        torch.manual_seed(seed)
        model = network(options.model, experiment, data, 1 if whole else 3, whole)
        found = fit(model, experiment, data, seed, rate, test)
        told = {"data": options.data, "model": options.model, "part": "test" if test else "validation", "rate": rate}
        print(json.dumps({**told, "seed": seed, **found}), flush=True)
        return found

    rate = experiment.train.optimizer.lr  # type: ignore[attr-defined]
    if options.rates:
        best = experiment.task.fit(data).build().best  # type: ignore[attr-defined]
        rate = max(options.rates, key=lambda one: run(options.seeds[0], one, False)[best])
    if not (options.blind and options.rates):
        for seed in options.seeds:
            run(seed, rate, not options.blind)
    return None


if __name__ == "__main__":
    main()
