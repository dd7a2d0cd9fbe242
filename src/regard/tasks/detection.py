"""Object detection: each object is matched with one query, and the others learn that there is none (DETR, sec. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data
from regard.data.scenes.data import SceneBatch, SceneData
from regard.errors import UserError
from regard.models import ModelConfig
from regard.models.detector import BOX, Detector
from regard.nn.boxes import overlap
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term
from regard.tasks.labeled import outputs
from regard.tasks.language import count_targets

BINS = 1000  # of scores, for the average precision
OVERLAP = 0.5  # intersection over union from which a box is right
SHOWN = 0.5  # the least probability of an object that is shown


@dataclass(frozen=True)
class DetectionConfig(TaskConfig, kind="detection"):
    """Find the objects of an image, each with its class and box."""

    trains, examples, unit = Detector, SceneData, "image"
    kinds_of_data = "objects with boxes: --data scenes"
    nothing: float = option(0.1, "weight of queries without an object in the loss of classes")
    boxes: float = option(5.0, "weight of the distance of boxes in the loss, and in the costs of matching")
    overlaps: float = option(2.0, "weight of the generalized intersection over union in both")
    labels: tuple[str, ...] = option((), "the names of the classes, written by the run")

    def fit(self, data: Data) -> DetectionConfig:
        super().fit(data)
        assert isinstance(data, SceneData)
        return replace(self, labels=data.classes)

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with outputs for the classes of ``data``."""
        assert isinstance(data, SceneData)
        return model.with_classes(data.classes)

    def build(self) -> DetectionTask:
        return DetectionTask(self)


class DetectionTask(Measured[DetectionConfig], Predicting):
    """Cross entropy of classes, and distance and overlap of boxes. Measure: the mean average precision at 0.5."""

    best = "map_50"

    def counts(self, batch: SceneBatch) -> dict[str, Tensor]:
        objects = count_targets(batch.targets)
        return {"class": batch.targets.new_tensor(len(batch.targets)), "box": objects, "overlap": objects}

    def measured(self, model: Detector, batch: SceneBatch) -> tuple[dict[str, Term], Tensor]:
        found, further, details = outputs(model, batch.arguments)
        logits, boxes = found[..., :-BOX], found[..., -BOX:].sigmoid()  # [B, Q, K + 1], [B, Q, 4]
        rows, queries, objects = self.match(logits.detach(), boxes.detach(), batch)
        none = logits.shape[-1] - 1
        targets = torch.full_like(logits[..., 0], none, dtype=torch.long)
        targets[rows, queries] = batch.targets[rows, objects]
        weight = logits.new_tensor([1.0] * none + [self.config.nothing])
        classes = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight, reduction="sum")
        own, given = boxes[rows, queries], batch.boxes[rows, objects].to(boxes)
        counts, config = self.counts(batch), self.config
        terms = {
            "class": Term(classes, counts["class"], details=details),
            "box": Term((own - given).abs().sum(), counts["box"], config.boxes),
            "overlap": Term((1 - overlap(own, given)[1]).sum(), counts["overlap"], config.overlaps),
        }
        return {**terms, **further}, precision_counts(logits.softmax(-1)[..., :none].detach(), boxes.detach(), batch)

    def match(self, logits: Tensor, boxes: Tensor, batch: SceneBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The cheapest pairs of queries and objects: rows, queries and objects, one entry a pair (equation 1)."""
        assign, config = assignment(), self.config
        given = batch.boxes[:, None].to(boxes)  # [B, 1, objects, 4]
        chosen = batch.targets.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1)
        cost = config.boxes * (boxes[:, :, None] - given).abs().sum(-1) - logits.softmax(-1).gather(2, chosen)
        cost = (cost - config.overlaps * overlap(boxes[:, :, None], given)[1]).double().cpu().numpy()
        pairs = []
        for row, present in enumerate((batch.targets != IGNORE_INDEX).cpu().numpy()):
            places = present.nonzero()[0]
            queries, objects = assign(cost[row][:, places])
            pairs += [(row, int(query), int(places[place])) for query, place in zip(queries, objects, strict=True)]
        rows, queries, objects = torch.tensor(pairs, device=logits.device).view(-1, 3).T
        return rows, queries, objects

    def metrics(self, sums: Tensor) -> dict[str, float]:
        return {"map_50": mean_average_precision(sums.view(-1, 2 * BINS + 1))}

    def predictions(self, model: Detector, batch: SceneBatch) -> list[Prediction]:
        """The objects of each image with their boxes in pixels, the most probable first."""
        found = model(*batch.arguments).float()
        scores, classes = found[..., :-BOX].softmax(-1)[..., :-1].max(-1)
        sides = found.new_tensor(batch.inputs.shape[:1:-1]).repeat(2)  # X, Y, X, Y
        boxes, answers = found[..., -BOX:].sigmoid() * sides, []
        for row in range(len(found)):
            shown = [query for query in scores[row].argsort(descending=True).tolist() if scores[row, query] >= SHOWN]
            objects: list[dict[str, Any]] = [
                {
                    "label": self.config.labels[int(classes[row, query])],
                    "probability": float(scores[row, query]),
                    "box": [round(side, 1) for side in boxes[row, query].tolist()],
                }
                for query in shown
            ]
            words = [f"{one['label']} {one['probability']:.2f} at {one['box'][0]},{one['box'][1]}" for one in objects]
            answers.append(Prediction("; ".join(words) or "nothing", {"objects": objects}))
        return answers


def assignment() -> Any:
    """SciPy's ``linear_sum_assignment``."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise UserError("boxes are matched by SciPy; install it: pip install 'regard[detection]'") from error
    return linear_sum_assignment


def precision_counts(scores: Tensor, boxes: Tensor, batch: SceneBatch) -> Tensor:
    """Statistics of each class that may be added, flat [K · (2·BINS + 1)]: right and wrong boxes by score; objects.

    Each query counts for its most probable class. From the most probable box on, each is right if its best overlap
    with an object of its class reaches 0.5 and no box before it has that object.
    """
    classes, (best, labels) = scores.shape[-1], scores.max(-1)
    sums = torch.zeros(classes, 2 * BINS + 1, dtype=torch.float64)
    overlaps = overlap(boxes[:, :, None], batch.boxes[:, None].to(boxes))[0].cpu()  # [B, Q, objects]
    best, labels, targets = best.cpu(), labels.cpu(), batch.targets.cpu()
    counts = torch.bincount(targets[targets != IGNORE_INDEX], minlength=classes)
    sums[:, -1] += counts
    for row in range(len(best)):
        free = targets[row] != IGNORE_INDEX
        for query in best[row].argsort(descending=True).tolist():
            label = int(labels[row, query])
            place = int(overlaps[row, query].masked_fill(targets[row] != label, -1).argmax())
            right = bool(free[place]) and int(targets[row, place]) == label
            right = right and float(overlaps[row, query, place]) >= OVERLAP
            free[place] &= not right
            sums[label, min(int(best[row, query] * BINS), BINS - 1) + (0 if right else BINS)] += 1
    return sums.flatten().to(scores.device)


def mean_average_precision(sums: Tensor) -> float:
    """The mean over classes of the area below precision by recall, from the statistics [K, 2·BINS + 1].

    The precision at a recall is the best at this or any higher recall, as in Pascal VOC 2010. Scores in the same of
    1,000 intervals are equal.
    """
    right, wrong, objects = sums[:, :BINS].flip(1).cumsum(1), sums[:, BINS:-1].flip(1).cumsum(1), sums[:, -1:]
    precision = right / (right + wrong).clamp(min=1)
    best = precision.flip(1).cummax(1).values.flip(1)
    recall = right / objects.clamp(min=1)
    steps = recall.diff(dim=1, prepend=torch.zeros_like(recall[:, :1]))
    seen = objects[:, 0] > 0
    return float((best * steps).sum(1)[seen].mean()) if seen.any() else 0.0
