"""Options of the recipe `karate`, chosen on random graphs; no label of the karate club is read.

    python -m bench.graph_choice --set="--model.dropout=0.5" --set="--model.layers=3"    each --set is one candidate
    python -m bench.graph_choice --first 1000 --graphs 100    the recipe as it is, on other graphs

Each graph has as many nodes and edges as the club, and two groups: the degree-corrected stochastic block model (Karrer
& Newman 2011) with uneven propensities. A model learns the groups of all nodes but one and is asked for that one. All
models of a candidate are trained at once by `torch.vmap`, with the loop of `bench.graphs`. Graphs other than those a
choice was made on confirm it. Each line has the fraction that is right, its standard error over graphs, and the loss.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional as F

from bench.graphs import network
from regard.nn.fused.install import FAST
from regard.recipes import recipe

NODES, EDGES = 34, 78
TOGETHER = 120  # models that are trained at once
ACROSS = (0.1, 0.15, 0.2)  # the fractions of edges between the groups: by turns


def block_graph(number: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The edges and groups of a graph in which each node has an edge and all are connected."""
    random = np.random.default_rng(number)
    while True:
        group = random.permutation(np.arange(NODES) % 2)
        weight = random.pareto(2.5, NODES) + 0.5
        pairs = np.stack(np.triu_indices(NODES, 1), 1)
        same = group[pairs[:, 0]] == group[pairs[:, 1]]
        share = weight[pairs].prod(1)
        across = ACROSS[number % len(ACROSS)]
        share = np.where(same, (1 - across) * share / share[same].sum(), across * share / share[~same].sum())
        edges = pairs[random.choice(len(pairs), EDGES, replace=False, p=share)]
        near = np.eye(NODES)
        near[edges[:, 0], edges[:, 1]] = near[edges[:, 1], edges[:, 0]] = 1
        if (np.linalg.matrix_power(near, NODES) > 0).all():
            return [(int(one), int(other)) for one, other in edges], group.tolist()


def write(path: Path, edges: list[tuple[int, int]], group: list[int]) -> Path:
    """A table as `--data nodes` reads it."""
    rows = [f"{one}\t{other}\t" for one, other in edges] + [f"{node}\t\t{'ab'[g]}" for node, g in enumerate(group)]
    path.write_text("\n".join(["source\ttarget\tlabel", *rows]) + "\n", "utf-8")
    return path


def plain(model: nn.Module) -> nn.Module:
    """Without the fast versions of modules for CPUs, which `vmap` does not know."""
    usual = {fast: module for module, fast in FAST.items()}
    for module in model.modules():
        module.__class__ = usual.get(type(module), type(module))
    return model


def trained(experiment: Any, datas: Sequence[Any], seeds: Sequence[int]) -> Tensor:
    """The probability of the right class of the held-out node of each data, with a model of each."""
    models = []
    for data, seed in zip(datas, seeds, strict=True):
        torch.manual_seed(seed)
        models.append(plain(network("regard", experiment, data, 2, False)))
    values, buffers = stack_module_state(models)
    values = {name: value.detach() for name, value in values.items()}
    rates, steps = experiment.train.optimizer.lr, experiment.train.steps
    smoothing = experiment.task.smoothing

    def logits(value: Any, buffer: Any, numbers: Tensor, nodes: Tensor, edges: Tensor) -> Tensor:
        return functional_call(models[0], (value, buffer), (numbers[None], nodes[None], edges[None]))[0]

    def loss(value: Any, buffer: Any, numbers: Tensor, nodes: Tensor, edges: Tensor, target: Tensor) -> Tensor:
        found = logits(value, buffer, numbers, nodes, edges)
        each = F.cross_entropy(found, target.clamp(min=0), reduction="none", label_smoothing=smoothing)
        return (each * (target >= 0)).sum() / (target >= 0).sum()

    def arrays(step: int) -> tuple[Tensor, ...]:
        batches = [data.batch(step, seed=seed, size=NODES) for data, seed in zip(datas, seeds, strict=True)]
        longest = max(batch.edges.shape[1] for batch in batches)
        edges = [F.pad(batch.edges[0], (0, 0, 0, longest - batch.edges.shape[1]), value=-1) for batch in batches]
        return (
            torch.stack([batch.inputs[0] for batch in batches]), torch.stack([batch.nodes[0] for batch in batches]),
            torch.stack(edges), torch.stack([batch.targets[0] for batch in batches]),
        )  # fmt: skip

    step_of = vmap(grad_and_value(loss), randomness="different")
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    torch.manual_seed(seeds[0])
    models[0].train()
    for step in range(steps):
        given = arrays(step)
        rate = rates * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        grads, _ = step_of(values, buffers, *given)
        norm = torch.stack([grad.flatten(1).square().sum(1) for grad in grads.values()]).sum(0).sqrt()
        shrink = (1 / (norm + 1e-6)).clamp(max=1)
        for name, grad in grads.items():  # AdamW, as torch has it
            grad = grad * shrink.view(-1, *[1] * (grad.ndim - 1))
            first[name].lerp_(grad, 0.1)
            second[name].lerp_(grad.square(), 0.05)
            mean, square = first[name] / (1 - 0.9 ** (step + 1)), second[name] / (1 - 0.95 ** (step + 1))
            values[name] = values[name] * (1 - rate * 0.1) - rate * mean / (square.sqrt() + 1e-8)
    models[0].eval()
    tests = [next(iter(data.test_batches(NODES))) for data in datas]
    given = (torch.stack([test.inputs[0] for test in tests]), *given[1:3])
    with torch.no_grad():
        found = vmap(logits)(values, buffers, *given)
    target = torch.stack([test.targets[0] for test in tests])
    asked = target >= 0
    return found.softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0][asked]


def main() -> None:
    """Compare candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], help="the options of one candidate, separated by spaces")
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--held", type=int, default=10, help="nodes of each graph, held out one at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for chosen in options.set or [""]:
        begun = time.process_time()
        experiment = recipe("karate", "--data.validation=0", "--model.backend=reference", *chosen.split())
        asked, found = [], []
        with TemporaryDirectory() as folder:
            for number in range(options.first, options.first + options.graphs):
                path = write(Path(folder, f"{number}.tsv"), *block_graph(number))
                data: Any = replace(experiment.data, path=str(path))  # type: ignore[type-var]
                nodes = np.random.default_rng((number, 1)).choice(NODES, options.held, replace=False).tolist()
                asked += [(replace(data, held=(str(node),)).build(0), number * NODES + node) for node in nodes]
        for start in range(0, len(asked), TOGETHER):
            datas, seeds = zip(*asked[start : start + TOGETHER], strict=True)
            found.append(trained(experiment, datas, seeds))
        sure = torch.cat(found)
        right = (sure > 0.5).float().view(options.graphs, -1).mean(1)
        told = {
            "set": chosen,
            "models": len(sure),
            "accuracy": round(float(right.mean()), 4),
            "error": round(float(right.std() / options.graphs**0.5), 4),
            "loss": round(float(-sure.clamp(min=1e-6).log().mean()), 4),
            "cpu_seconds": round(time.process_time() - begun, 1),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
