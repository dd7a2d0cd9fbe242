"""Every attention, position encoding, block and feed-forward network in the same small model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from regard.config import override
from regard.data import Data, TextBatch
from regard.errors import UserError
from regard.models.device import find_device
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.recipes import get
from regard.studies.page import Study, machine
from regard.studies.short_training import train_shortly
from regard.train import Experiment
from regard.train.evaluate import evaluate

STEPS, BATCHES = 250, 40


def _each(key: str, *kinds: str) -> dict[str, dict[str, object]]:
    return {kind: {f"model.{key}": kind} for kind in kinds}


#: Keys of the recipe `shakespeare`, by the name of the variant.
GROUPS: dict[str, dict[str, dict[str, object]]] = {
    "attention": {
        "softmax": {},
        "softmax, scores capped": {"model.attention": "softmax", "model.attention.cap": 20.0},
        **_each("attention", "window", "strided", "dilated", "sparse", "longformer", "bigbird", "segments"),
        "segments with summaries": {"model.attention": "segments", "model.attention.summaries": 16},
        **_each("attention", "linear", "performer", "lsh", "topk", "talking", "linformer"),
        **_each("attention", "s4d", "mamba", "mingru", "minlstm"),
        "window, every 2nd layer global": {"model.attention": "window", "model.global_every": 2},
    },
    "position": _each("position", "none", "sinusoidal", "learned", "rotary", "alibi", "relative", "t5"),
    "block": {
        **_each("block", "pre-norm", "post-norm", "sandwich", "parallel", "reversible"),
        "no qk-norm": {"model.qk_norm": False},
        "layers shared in pairs": {"model.repeat": 2},
        "latent projection": {"model.projection": "latent"},
        "shared projection": {"model.projection": "shared"},
    },
    "feed-forward": _each("feedforward", "relu", "gelu", "relu2", "swiglu", "geglu", "moe"),
}


Result = tuple[float, float] | str  # validation loss and characters per second, or why it was refused
Results = dict[str, dict[str, Result]]


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What does each component cost or gain? The same 4-layer model of Shakespeare with one component replaced.

    regard study family

    The recipe `shakespeare`, 250 steps each with its own schedule, one component replaced at a time; validation loss in
    nats per character on the same 80,000 characters, and characters per second in training. Half an hour on 2 cores, a
    few minutes on a GPU.
    """
    steps = max(3, round(STEPS * scale))
    base = get("shakespeare")
    base = replace(base, seed=seed, train=replace(base.train, steps=steps, precision="float32", compile=False))
    data = base.data.build(base.model.context)
    base = replace(base, model=replace(base.model, vocabulary=data.vocabulary))
    held_out = list(islice(data.validation_batches(base.data.batch), BATCHES))
    again = losses_of(replace(base, seed=seed + 1), data, held_out)
    say(f"the base with seed {seed + 1}: {again[0]:.4f}")
    results: Results = {}
    for group, members in GROUPS.items():
        results[group] = {}
        for name, given in members.items():
            try:
                results[group][name] = losses_of(override(base, given).checked(), data, held_out)
            except UserError as problem:
                results[group][name] = str(problem)
            say(f"{group}, {name}: {summarize(results[group][name])}")
    plain = results["attention"]["softmax"]
    assert not isinstance(plain, str)  # the recipe itself
    spread = abs(plain[0] - again[0])
    return Study(
        words(results, plain[0], spread),
        [chart(group, members, steps, plain[0]) for group, members in results.items()],
        {"steps": steps, "other_seed": again[0], "found": results},
        f"recipe shakespeare, {steps} steps each, seed {seed}, {machine(find_device(base.train.device))}",
    )


def losses_of(experiment: Experiment, data: Data, held_out: Sequence[TextBatch]) -> tuple[float, float]:
    """Validation loss after training, and characters per second in training."""
    run = train_shortly(experiment, data)
    if not math.isfinite(run.loss):
        return math.inf, 0.0
    result = evaluate(run.engine, held_out)
    assert result is not None  # there are batches
    return result["validation_loss"], run.tokens_per_second


def summarize(result: Result) -> str:
    """A result in words."""
    return result if isinstance(result, str) else f"{result[0]:.4f} nats, {result[1]:,.0f} characters/s"


def words(results: Results, plain: float, spread: float) -> list[str]:
    """The best and worst variant of each group, and the difference between two seeds."""
    sentences = [f"The unchanged recipe: {plain:.3f} nats per character; another seed differs by {spread:.3f}."]
    for group, members in results.items():
        losses = {name: result[0] for name, result in members.items() if not isinstance(result, str)}
        best, worst = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
        sentences.append(
            f"{group.capitalize()}: {best} is best ({losses[best]:.3f}), {worst} worst ({losses[worst]:.3f})."
        )
        refused = [f"{name}: {result}" for name, result in members.items() if isinstance(result, str)]
        sentences += [f"Refused: {one}" for one in refused]
    return sentences


def chart(group: str, members: dict[str, Result], steps: int, plain: float) -> ChartSection:
    """Losses, the best first, and a table with speeds."""
    losses = [(name, result[0]) for name, result in members.items() if not isinstance(result, str)]
    rows = [
        (name, "refused", "") if isinstance(result, str) else (name, f"{result[0]:.4f}", f"{result[1]:,.0f}")
        for name, result in members.items()
    ]
    return ChartSection(
        f"{group.capitalize()}, after {steps} steps",
        "The faint line is the unchanged recipe (softmax attention).",
        [],
        Axes("", "validation loss, nats per character"),
        named=sorted((one for one in losses if math.isfinite(one[1])), key=lambda one: one[1]),
        line=plain,
        columns=(group, "validation loss", "characters/s"),
        rows=rows,
    )
