"""The cases of test_layouts.py, and the ranks that run them: ``python layout_rank.py SIZE FOLDER NAME...``.

A new layout is one more line in ``CASES``.
"""

from __future__ import annotations

import io
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.utils._python_dispatch import TorchDispatchMode

from forked_ranks import fork_ranks
from regard.config import to_toml
from regard.data import TextConfig
from regard.doctor import Doctor
from regard.models import GPTConfig, ModelConfig
from regard.nn.experts.moe import MoEConfig
from regard.parallel import fsdp
from regard.parallel.layout import Layout
from regard.parallel.pieces import pieces, whole_shape
from regard.parallel.tensors import local, weights
from regard.parallel.world import World, from_environment
from regard.runs import Run
from regard.train import AdamWConfig, Experiment, MuonConfig, Observer, TrainConfig, train
from regard.train.engine import Engine
from regard.train.evaluate import evaluate
from regard.train.prepare import prepare

LANES, STEPS = 4, 20
#: The steps after which the run that changes its layout ends on 2 and on 4 ranks; one process does the rest.
CHANGES = {2: 5, 4: 10}
GPT = GPTConfig(context=8, layers=2, heads=2, width=16, dropout=0.1, zero_init=False)
EXPERTS = replace(GPT, feedforward=MoEConfig(ratio=0.5, experts=4, shared=1), bias=True)
MODELS: dict[str, ModelConfig] = {
    "gpt": GPT,
    "tied": replace(GPT, tied=True),
    "still": replace(GPT, dropout=0.0),
    "experts": EXPERTS,
    "capacity": replace(EXPERTS, feedforward=replace(EXPERTS.feedforward, capacity=0.8)),
    "whole heads": replace(GPT, attention_dropout=0.0, bias=True),
}


@dataclass(frozen=True)
class Case:
    """A layout that has to give the results of one process. ``shard`` is what is left of the ranks."""

    name: str
    ranks: int
    layout: Layout
    model: str = "gpt"
    training: Mapping[str, Any] | None = None  # other values of TrainConfig
    room: bool = True  # for the whole gradients of several micro-batches
    slow: bool = True  # so that `make test` leaves it out


CASES = (
    Case("fsdp", 2, Layout(), slow=False),
    Case("fsdp tied", 2, Layout(), "tied"),
    Case("fsdp accumulate recomputed", 2, Layout(), training={"accumulate": 2, "checkpointing": True}, slow=False),
    Case("fsdp no room", 2, Layout(), room=False, slow=False),
    Case("replicate", 2, Layout(replicate=2)),
    Case("experts", 2, Layout(expert=2), "experts", slow=False),
    Case("experts accumulate recomputed", 2, Layout(expert=2), "capacity", {"accumulate": 2, "checkpointing": True}),
    Case("experts muon", 2, Layout(expert=2), "experts", {"optimizer": MuonConfig()}),
    Case("fsdp of 4", 4, Layout()),
    Case("hsdp", 4, Layout(replicate=2)),
    Case("experts and shards", 4, Layout(expert=2), "experts"),
    Case("experts and replicas", 4, Layout(replicate=2, expert=4), "capacity"),
    Case("experts and shards muon", 4, Layout(expert=2), "experts", {"optimizer": MuonConfig()}),
    Case("tensor", 2, Layout(tensor=2), "whole heads", {"clip": 0.1}),
    Case("tensor muon", 2, Layout(tensor=2), "whole heads", {"optimizer": MuonConfig()}, slow=False),
    Case("fsdp x tensor muon", 4, Layout(tensor=2), "whole heads", {"optimizer": MuonConfig()}),
    Case("fsdp x tensor", 4, Layout(tensor=2), "whole heads", {"clip": 0.1, "accumulate": 2}),
    Case("context", 2, Layout(context=2), "still", slow=False),
    Case("context of 4", 4, Layout(context=4), "still"),
    Case("fsdp and context", 4, Layout(context=2), "still", {"checkpointing": True}),
)


def experiment(case: Case, folder: Path) -> Experiment:
    """The experiment of a case; its text is in the folder."""
    path = folder / "text.txt"
    options = {"log_every": 1, "evaluate_every": None, "save_every": None, "keep": 100, "device": "cpu", "lanes": LANES}
    options |= {"optimizer": AdamWConfig(lr=1e-2)} | dict(case.training or {})
    training = TrainConfig(steps=STEPS, **options)
    return Experiment(MODELS[case.model], TextConfig(path=str(path), batch=2), train=training, seed=7)


def write_text(folder: Path) -> None:
    """The text that all cases train on."""
    (folder / "text.txt").write_text("the cat sat on the mat; a rat ran at the cat. " * 12, encoding="utf-8")


def build(case: Case, folder: Path, world: World) -> Engine:
    """The engine of a case, at its first step."""
    wanted = experiment(case, folder)
    data = wanted.data.build(wanted.model.context, folder / "cache")
    return Engine(replace(wanted, model=wanted.model_for(data)), data, world)


@contextmanager
def float64() -> Iterator[None]:
    """A context in which models are built in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def own_pieces(engine: Engine, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What this rank holds of each tensor, named by its parameter, with the whole shape."""
    found = {}
    for name, tensor in tensors.items():
        cut = engine.model.cuts.get(name) or engine.model.cuts.get(name.rpartition("/")[0])
        if tensor.ndim == 0:
            found[name] = ((), [((), local(tensor).clone())])
            continue
        parts = [(piece.in_whole(), local(tensor)[piece.in_local()].clone()) for piece in pieces(tensor, cut)]
        found[name] = (whole_shape(tensor, cut), parts)
    return found


def gradients(engine: Engine) -> tuple[dict[str, Tensor], float]:
    """The gradients of an update, before clipping, by parameter, and their norm."""
    norm = engine.update().norm
    return {name: p.grad for p, name in engine.optimizer.names.items() if p.grad is not None}, norm


def trained(engine: Engine) -> list[float]:
    """The losses of all steps, and then that of an evaluation."""
    losses = [engine.update().loss for _ in range(STEPS)]
    measured = evaluate(engine)
    assert measured is not None
    return [*losses, measured["validation_loss"]]


def result(case: Case, folder: Path, world: World) -> dict[str, Any]:
    """Everything that a case is compared by, on this rank."""
    found: dict[str, Any] = {}
    fsdp.free_memory = lambda device: None if case.room else 0
    still = replace(case, training={**(case.training or {}), "clip": None})
    with float64():
        engine = build(still, folder, world)
        each, found["norm"] = gradients(engine)
        found["gradients"] = own_pieces(engine, each)
    for again in (False, True):
        with redirect_stderr(io.StringIO()) as said:
            engine = build(case, folder, world)
        found["said"] = said.getvalue()
        start = own_pieces(engine, weights(engine.model))
        losses = trained(engine)
        found["again" if again else "once"] = (start, losses, own_pieces(engine, weights(engine.model)))
    if world.size > 1:
        with CollectiveCount() as collectives:
            engine.update()
        found["collectives"] = dict(collectives.counts)
        found["seconds"] = counted_seconds(engine)
    return found


class CollectiveCount(TorchDispatchMode):
    """Counts collective operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted_seconds(engine: Engine) -> tuple[float, ...]:
    """The seconds of each rank in an update, by a clock that counts a gather as 5 and rank 1's micro-batches as 1."""
    clock, terms, gather = [0.0], engine.terms, DefaultAllGather.__call__

    def slow_terms(*given: Any) -> Any:
        clock[0] += engine.world.rank
        return terms(*given)

    def slow_gather(*given: Any, **named: Any) -> Any:
        clock[0] += 5
        return gather(*given, **named)

    engine.terms = slow_terms
    with (
        mock.patch.object(time, "perf_counter", side_effect=lambda: clock[0]),
        mock.patch.object(DefaultAllGather, "__call__", slow_gather),
    ):
        return engine.update().rank_seconds


class StopAt(Observer):
    """Sends this process a signal after a step; the run stops after the next one."""

    def __init__(self, step: int):
        self.step = step

    def stepped(self, step: Any) -> None:
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def change(folder: Path, world: World) -> dict[str, Any]:
    """Continue the run that changes its layout, up to the step at which these ranks end; what was loaded before."""
    run = Run.open(folder / "runs" / "changes")
    resume = bool(run.steps())
    found = {}
    wanted = run.load(Experiment)
    if resume:
        engine = prepare(wanted, run, world, 0.0, resume=True)
        found = own_pieces(engine, weights(engine.model)) | own_pieces(engine, engine.optimizer.state())
    world.barrier()
    doctor = Doctor()
    train(wanted, run, [doctor, StopAt(CHANGES[world.size] - 1)] if world.size > 1 else [], resume=resume)
    assert doctor.active
    return found


def start_changing(folder: Path, name: str = "changes") -> Run:
    """The run that changes its layout, before its first step."""
    return Run.create(folder / "runs", name, to_toml(experiment(CASES[0], folder)), {})


def main(rank: int, size: int, folder: Path, *names: str) -> None:
    """One rank: the cases of these names, and of "changes", its part of the run that changes its layout."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "REGARD_CACHE": str(folder / "cache")}
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / f'meeting-{size}-{names[0]}'}", rank=rank, world_size=size
    )
    for case in (case for case in CASES if case.name in names):
        try:
            found = result(case, folder, from_environment(case.layout).with_mesh())
        except Exception:  # the same on every rank, so the next case can be tried
            found = {"error": traceback.format_exc()}
        torch.save(found, folder / f"{case.name}.{rank}")
    if "changes" in names:
        torch.save(change(folder, from_environment().with_mesh()), folder / f"changes-{size}.{rank}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
