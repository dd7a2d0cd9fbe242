"""Tasks of graphs: classes of nodes, and links between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data
from regard.data.graphs.links import LinkData
from regard.data.graphs.nodes import NodeData
from regard.errors import UserError
from regard.models import GraphConfig, GraphTransformer, ModelConfig
from regard.nn.heads import LinksHeadConfig, TokenClassesHeadConfig
from regard.tasks.arrays import ArrayClassificationConfig, ArrayClassificationTask, class_prediction
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term
from regard.tasks.labeled import outputs
from regard.tasks.language import count_targets

FIRST = 3  # answers that a prediction shows


def graph_model(model: ModelConfig, task: TaskConfig) -> GraphConfig:
    """The model, if it reads graphs."""
    if not isinstance(model, GraphConfig):
        raise UserError(
            f"the task {task.kind} trains a model of graphs, and this one is a {model.kind}; set --model graph"
        )
    return model


@dataclass(frozen=True)
class NodeClassificationConfig(ArrayClassificationConfig, kind="node-classification"):
    """Predict the classes of nodes."""

    trains, examples = GraphTransformer, NodeData
    kinds_of_data, unit = "a graph with labels: --data nodes", "node"

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        assert isinstance(data, NodeData)
        return replace(graph_model(model, self), head=TokenClassesHeadConfig(len(data.labels), data.labels))

    def build(self) -> NodeClassificationTask:
        return NodeClassificationTask(self)


class NodeClassificationTask(ArrayClassificationTask):
    """The cross entropy of the classes of the nodes that count."""

    name = "node"

    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The most likely class of each node that counts; of all real nodes, if none does."""
        targets = batch.targets[0]
        asked = targets != IGNORE_INDEX
        asked = asked if asked.any() else batch.nodes[0] >= 0
        found = []
        shares = model(*batch.arguments)[0].float().softmax(-1)
        for node in asked.nonzero()[:, 0].tolist():
            answer = class_prediction(self.config.labels, shares[node].tolist())
            known = int(targets[node])
            given = {} if known == IGNORE_INDEX else {"given": self.config.labels[known]}
            found.append(Prediction(answer.line, {**answer.record, **given}, part=node))
        return found


@dataclass(frozen=True)
class LinkPredictionConfig(TaskConfig, kind="link-prediction"):
    """Predict the node that a relation leads to."""

    trains, examples, unit = GraphTransformer, LinkData, "question"
    kinds_of_data = "triples: --data links"
    smoothing: float = option(
        0.0, "label smoothing: the share of the target that all nodes have in common", least=0, below=1
    )
    labels: tuple[str, ...] = option((), "the names of the nodes, written by the run")

    def fit(self, data: Data) -> LinkPredictionConfig:
        super().fit(data)
        assert isinstance(data, LinkData)
        return replace(self, labels=data.names)

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        assert isinstance(data, LinkData)
        return replace(graph_model(model, self), head=LinksHeadConfig(2 * len(data.kinds)))

    def build(self) -> LinkPredictionTask:
        return LinkPredictionTask(self)


class LinkPredictionTask(Measured[LinkPredictionConfig], Predicting):
    """The cross entropy over all nodes. Measures: the mean reciprocal rank, and the share of ranks up to 1, 3 and 10.

    Ranks are filtered (Bordes et al. 2013, sec. 4.2): other right answers do not count. Equal scores share a mean rank.
    """

    best, name = "mrr", "link"

    def counts(self, batch: Any) -> dict[str, Tensor]:
        return {self.name: count_targets(batch.targets)}

    def measured(self, model: Any, batch: Any) -> tuple[dict[str, Term], Tensor]:
        scores, further, details = outputs(model, batch.arguments)
        scores = scores[..., 0].flatten(0, 1)  # [questions, N]
        targets = batch.targets.flatten()
        total = F.cross_entropy(
            scores, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=self.config.smoothing
        )
        terms = {self.name: Term(total, count_targets(targets), details=details), **further}
        counted = targets != IGNORE_INDEX
        right = scores.gather(1, targets.clamp(min=0)[:, None])
        others = scores if batch.known is None else scores.masked_fill(batch.known.flatten(0, 1), -torch.inf)
        ranks = ((others > right).sum(1) + ((others == right).sum(1) + 1) / 2)[counted].double()
        sums = [
            ranks.new_tensor(len(ranks)),
            (1 / ranks).sum(),
            *((ranks <= most).double().sum() for most in (1, 3, 10)),
        ]
        return terms, torch.stack(sums)

    def metrics(self, sums: Tensor) -> dict[str, float]:
        count, *found = sums.tolist()
        return dict(zip(("mrr", "hits_1", "hits_3", "hits_10"), (one / max(count, 1) for one in found), strict=True))

    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The best answers to the first question of each row, without those that are known."""
        scores = model(*batch.arguments)[:, 0, :, 0].float()
        if batch.known is not None:
            scores = scores.masked_fill(batch.known[:, 0], -torch.inf)
        shares, nodes = scores.softmax(-1).topk(min(FIRST, scores.shape[1]))
        found = []
        for row, names in zip(shares.tolist(), nodes.tolist(), strict=True):
            answers = {self.config.labels[node]: share for node, share in zip(names, row, strict=True)}
            line = ", ".join(f"{name} {share:.2f}" for name, share in answers.items())
            found.append(Prediction(line, {"label": next(iter(answers)), "probabilities": answers}))
        return found
