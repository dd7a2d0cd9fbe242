"""Known-good statistics of the recipes: loss, gradient norm and update size by step and size, from reference.json.

The file is written by ``python -m bench.reference``. Losses over tokens are relative to log V.
"""

import json
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import dump
from regard.train import Experiment

PATH = Path(__file__).with_name("reference.json")
STEPS = (1, 5, 10, 20, 30, 45, 60, 100, 150)
#: Factors within which a run is comparable: the learning rate, the tokens of a step, the number of parameters.
RATE, TOKENS, SIZE = 2.0, 4.0, 4.0
#: Keys of models and tasks of arrays that may differ: sizes, and what follows from the data.
FREE = (
    "width",
    "heads",
    "head",
    "batch",
    "context",
    "kinds",
    "numbers",
    "channels",
    "points",
    "image",
    "labels",
    "names",
    "weights",
)
FREE += ("means", "deviations", "values", "columns", "classes", "vocabulary")


class RecordedStatistics(NamedTuple):
    """What a healthy run of the same kind has at one step."""

    recipe: str
    loss: float  # in nats
    norm: float
    update: float | None


def description(experiment: Experiment) -> dict[str, Any]:
    """What must be equal in a run and its reference, and the numbers that must be near."""
    found = dump(experiment)
    model, data, train = found["model"], found["data"], found["train"]
    kinds = {key: value["kind"] if isinstance(value, dict) else value for key, value in model.items()}
    structure = {key: value for key, value in kinds.items() if isinstance(value, str)}
    text = {key: data.get(key) for key in ("kind", "source", "path", "tokenizer")}
    same = {"model": structure, "task": found["task"]["kind"], "optimizer": train["optimizer"]["kind"], **text}
    if experiment.model.reads != "text":  # a loss of few examples depends on depth, dropout, augmentation and smoothing
        parts = {"model": model, "task": found["task"], "data": data}
        same |= {part: {k: v for k, v in keys.items() if k not in FREE} for part, keys in parts.items()}
    return {
        "same": same,
        "rate": train["optimizer"]["lr"],
        "tokens": data["batch"] * train["accumulate"] * (model["context"] if text["kind"] == "text" else 1),
    }


@cache
def rows() -> list[dict[str, Any]]:
    """The rows of the file."""
    return json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else []


def near(one: float, other: float, factor: float) -> bool:
    """Whether two numbers are within a factor."""
    return one > 0 and other > 0 and 1 / factor <= one / other <= factor


def reference_at(experiment: Experiment, parameters: int, step: int) -> RecordedStatistics | None:
    """The reference of a run at one step, interpolated over the logarithms of steps and sizes, if there is one."""
    own = json.loads(json.dumps(description(experiment)))
    like = [
        row
        for row in rows()
        if row["same"] == own["same"]
        and near(row["rate"], own["rate"], RATE)
        and near(row["tokens"], own["tokens"], TOKENS)
        and near(row["parameters"], parameters, SIZE)
        and row["steps"][0] <= step <= row["steps"][-1]
    ]
    if not like:
        return None
    like.sort(key=lambda row: abs(math.log(row["parameters"] / parameters)))
    like = [row for row in like if row["recipe"] == like[0]["recipe"]][:2]
    sizes = [math.log(row["parameters"]) for row in like]
    at = 0.0 if len(like) < 2 else (math.log(parameters) - sizes[0]) / (sizes[1] - sizes[0])
    share = [1 - min(max(at, 0.0), 1.0), min(max(at, 0.0), 1.0)]

    def value(key: str) -> float:
        return sum(weight * interpolate(row["steps"], row[key], step) for weight, row in zip(share, like, strict=False))

    loss = value("loss") * loss_scale(experiment)
    return RecordedStatistics(like[0]["recipe"], loss, value("norm"), like[0]["update"])


def loss_scale(experiment: Experiment) -> float:
    """What recorded losses are relative to: the loss of equal probabilities for all tokens, or 1 without tokens."""
    return math.log(experiment.model.vocabulary) if experiment.model.vocabulary > 1 else 1.0


def interpolate(steps: list[int], values: list[float], step: int) -> float:
    """Linear in the logarithm of the step."""
    for (left, a), (right, b) in pairwise(zip(steps, values, strict=True)):
        if left <= step <= right:
            return a + (b - a) * math.log(step / left) / math.log(right / left)
    return values[0]
