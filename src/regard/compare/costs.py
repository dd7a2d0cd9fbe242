"""What each contender takes: FLOPs and memory of a traced step, and times that are measured in turn.

One step of every contender, then the next one of every contender, and so on: other work on the machine slows all of
them alike, and the median over the rounds leaves out the worst of it.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.compare.budget import StepCost
from regard.compare.contender import Contender
from regard.config import to_toml
from regard.data import Batch, Data
from regard.generate.cached import CachedLanguageModel
from regard.models import LanguageModel, Model
from regard.models.device import find_device, parameter_device
from regard.nn.fused import install
from regard.parallel.world import World
from regard.plan import plan, step_work
from regard.runs.disk import replace_files
from regard.train import Experiment
from regard.train.device import synchronize
from regard.train.engine import Engine
from regard.train.evaluate import evaluate
from regard.untrusted import read_plain

WARM, LEAST, MOST = 2, 7, 60  # rounds before the measured ones, and the fewest and most of those
SECONDS = 3.0  # for the measured steps of each contender
TRACED = 3  # batches whose FLOPs are averaged where batches differ in length
DECODED, ROUNDS = 32, 5  # tokens that are generated in a round, and rounds
FILE = "costs.json"
Clock = Callable[[], float]
Say = Callable[[str], None]


class Costs(NamedTuple):
    """What a contender takes."""

    parameters: int
    step: StepCost
    evaluation: float  # seconds of a batch that is evaluated
    memory: float  # bytes at the peak of a step: weights, gradients, optimizer, activations
    decode: float | None  # tokens per second of one text, with a cache; None: it does not generate

    @classmethod
    def read(cls, record: dict[str, Any]) -> Costs:
        """From JSON."""
        return cls(**{**record, "step": StepCost(*record["step"])})


def known_costs(
    contenders: Sequence[Contender], data: Data[Batch], folder: Path, threads: int, say: Say, keep: bool = True
) -> list[Costs]:
    """The costs in ``costs.json`` of the folder, if they are of these contenders; otherwise they are measured.

    A comparison that continues so has the same numbers of steps. ``keep``: write what was measured to that file.
    """
    described = "\n".join([str(threads), *(to_toml(one.experiment) for one in contenders)])
    digest = hashlib.sha256(described.encode()).hexdigest()
    try:
        known = json.loads(read_plain(folder / FILE))
        if known["contenders"] == digest:
            return [Costs.read(one) for one in known["costs"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    say(f"measuring steps of {len(contenders)} contenders in turn")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = measure_costs(contenders, data)
    finally:
        torch.set_num_threads(before)
    record = {"contenders": digest, "costs": [one._asdict() for one in found]}
    if keep:
        replace_files(folder, {FILE: json.dumps(record)})
    return found


def measure_costs(contenders: Sequence[Contender], data: Data[Batch], clock: Clock = time.perf_counter) -> list[Costs]:
    """The costs of every contender; their times in turn."""
    traced = [counted(one.experiment, data) for one in contenders]
    engines = [engine(one.experiment, data) for one in contenders]
    steps = in_turn([timed_update(one) for one in engines], clock)
    batches = [list(islice(one.validation_batches(), 1)) for one in engines]
    evaluations = in_turn([timed_evaluation(*pair) for pair in zip(engines, batches, strict=True)], clock, ROUNDS)
    decoding = decode_speeds([one.model for one in engines], clock)
    return [
        Costs(parameters, step._replace(seconds=seconds), evaluation, memory, speed)
        for (step, parameters, memory), seconds, evaluation, speed in zip(
            traced, steps, evaluations, decoding, strict=True
        )
    ]


def counted(experiment: Experiment, data: Data[Batch]) -> tuple[StepCost, int, float]:
    """A step's tokens and FLOPs, without its seconds; the parameters, and the bytes at its peak."""
    train, lanes = experiment.train, experiment.train.lanes or 1
    count = TRACED if data.dynamic_shapes else 1
    places = [(position, lane) for position in range(count * train.accumulate) for lane in range(lanes)]
    batches = [experiment.batch(data, *place, lanes) for place in places]
    plans = [plan(experiment, fixes=False, batch=batch) for batch in (batches if data.dynamic_shapes else batches[:1])]
    flops = statistics.fmean(step_work(made.trace, train.micro_batches).flops for made in plans)
    tokens = sum(float((batch.targets >= 0).sum()) for batch in batches) / count
    return StepCost(tokens, flops, 0.0), plans[0].trace.parameters, max(made.memory.total for made in plans)


def engine(experiment: Experiment, data: Data[Batch]) -> Engine:
    """An engine for a measurement: a long schedule, so that learning rates stay small."""
    endless = replace(experiment.train, steps=10**9, tokens=None, epochs=None, seconds=None)
    return Engine(replace(experiment, train=endless), data, World(device=find_device(experiment.train.device)))


def timed_update(one: Engine) -> Callable[[], None]:
    """A training step that ends when the device has finished."""

    def update() -> None:
        one.update()
        synchronize(one.device)

    return update


def timed_evaluation(one: Engine, batches: Sequence[Batch]) -> Callable[[], None]:
    """An evaluation on some batches."""

    def evaluation() -> None:
        evaluate(one, batches)
        synchronize(one.device)

    return evaluation


def in_turn(functions: Sequence[Callable[[], None]], clock: Clock, rounds: int | None = None) -> list[float]:
    """The median seconds of each function; they are called in turn, in every second round in the opposite order."""
    times: list[list[float]] = [[] for _ in functions]
    number, spent = -WARM, 0.0
    while number < (rounds or LEAST) or (rounds is None and number < MOST and spent < SECONDS * len(functions)):
        order = list(enumerate(functions))
        for place, function in order if number % 2 else reversed(order):
            began = clock()
            function()
            taken = clock() - began
            if number >= 0:
                times[place].append(taken)
                spent += taken
        number += 1
    return [statistics.median(one) for one in times]


@torch.no_grad()
def decode_speeds(models: Sequence[Model], clock: Clock) -> list[float | None]:
    """Tokens per second of each model that generates text, one text at a time, behind half a context."""
    able = {place: one for place, one in enumerate(models) if isinstance(one, LanguageModel) and one.decodable}
    for model in able.values():
        model.eval()
        install(model)  # the fast paths with which `regard generate` runs

    seconds = in_turn([decoding(model) for model in able.values()], clock, ROUNDS)
    speeds = {place: DECODED / taken for place, taken in zip(able, seconds, strict=True)}
    return [speeds.get(place) for place in range(len(models))]


def decoding(model: LanguageModel) -> Callable[[], None]:
    """Generate a few tokens behind a prompt that has been read."""
    device = parameter_device(model)
    prompt = [1] * max(1, model.config.context // 2)
    cached = CachedLanguageModel(model, [prompt], DECODED * (WARM + ROUNDS) + 1)
    cached.prefill(1)
    token = torch.ones(1, dtype=torch.int64, device=device)

    def generate() -> None:
        for _ in range(DECODED):
            cached.step(token)
        synchronize(device)

    return generate
