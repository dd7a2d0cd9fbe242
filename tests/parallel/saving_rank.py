"""The ranks of test_saved_layouts.py: ``python saving_rank.py SIZE FOLDER``.

They load what other ranks have saved, train for two steps, and save in layouts of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from layout_rank import MODELS, Case, build, experiment, own_pieces
from torch import distributed

from forked_ranks import fork_ranks
from regard.config import to_toml
from regard.parallel.layout import Layout
from regard.parallel.tensors import weights
from regard.parallel.world import World, from_environment
from regard.runs import Run
from regard.train import MuonConfig
from regard.train.checkpoint import restore
from regard.train.engine import Engine
from regard.train.prepare import newest
from regard.train.saving import save

#: By number of ranks and model: how two ranks save first, and then four.
LAYOUTS = {
    2: {
        "tied": Layout(),
        "experts": Layout(expert=2),
        "whole heads": Layout(tensor=2),
        "still": Layout(context=2),
    },
    4: {
        "tied": Layout(replicate=2),
        "experts": Layout(replicate=2, expert=4),
        "whole heads": Layout(tensor=2),
        "still": Layout(context=2),
    },
}
TRAINING: dict[str, dict[str, Any]] = {"whole heads": {"optimizer": MuonConfig()}}


def case(model: str, ranks: int, layout: Layout) -> Case:
    """A model in a layout."""
    return Case(model, ranks, layout, model, TRAINING.get(model))


def start_runs(folder: Path) -> None:
    """A run for each model, before its first step."""
    for model in LAYOUTS[2]:
        assert model in MODELS
        Run.create(folder / "runs", model.replace(" ", "-"), to_toml(experiment(case(model, 1, Layout()), folder)), {})


def run_of(folder: Path, model: str) -> Run:
    """The run of a model."""
    return Run.open(folder / "runs" / model.replace(" ", "-"))


def state(engine: Engine) -> dict[str, Any]:
    """What this rank holds of the model and the optimizer."""
    return own_pieces(engine, weights(engine.model)) | own_pieces(engine, engine.optimizer.state())


def loaded(model: str, folder: Path, world: World) -> tuple[Engine, dict[str, Any]]:
    """The engine after it has loaded the newest checkpoint, if there is one, and then its state."""
    engine, run = build(case(model, world.size, world.layout), folder, world), run_of(folder, model)
    checkpoint = newest(run, world)
    if checkpoint is not None:
        restore(engine, checkpoint)
    return engine, state(engine)


def main(rank: int, size: int, folder: Path) -> None:
    """One rank: every model."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    meeting = f"file://{folder / f'saving-{size}'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    for model, layout in LAYOUTS[size].items():
        engine, found = loaded(model, folder, from_environment(layout).with_mesh())
        for _ in range(2):
            engine.update()
        save(engine, run_of(folder, model))
        torch.save((found, state(engine)), folder / f"{model}-{size}.{rank}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
