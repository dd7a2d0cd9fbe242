"""The ranks of the runs of test_expert.py: ``python expert_rank.py SIZE FOLDER``.

It computes the gradients of its lanes of every case and writes the pieces that it holds, with the bytes it has sent.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed

from forked_ranks import fork_ranks
from regard.data import TextBatch
from regard.models import GPTConfig, LanguageModel
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.parallel import expert
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.pieces import pieces, whole_shape
from regard.parallel.tensors import local
from regard.parallel.world import World
from regard.tasks import LanguageConfig

LANES = 4
EXPERTS = MoEConfig(ratio=0.75, experts=4, shared=1, balance=0.3, z=0.2)
MODEL = GPTConfig(vocabulary=13, context=8, layers=2, heads=2, width=16, dropout=0.0, zero_init=False)


class Case(NamedTuple):
    """A model, and the layout of its ranks."""

    feedforward: MoEConfig
    layout: Layout
    bias: bool = False
    checkpointing: bool = False
    repeat: int = 1
    constant: bool = False  # the router prefers the first experts for every token


CASES = {
    2: {
        "shared": Case(EXPERTS, Layout(shard=2, expert=2)),
        "biases": Case(replace(EXPERTS, activation="relu2"), Layout(shard=2, expert=2), bias=True),
        "capacity": Case(replace(EXPERTS, capacity=0.6), Layout(shard=2, expert=2), bias=True),
        "recomputed": Case(EXPERTS, Layout(shard=2, expert=2), checkpointing=True),
        "repeated": Case(EXPERTS, Layout(shard=2, expert=2), repeat=2),
        "one expert": Case(replace(EXPERTS, shared=0, active=1), Layout(shard=2, expert=2), constant=True),
    },
    4: {
        "groups of two": Case(EXPERTS, Layout(shard=4, expert=2), bias=True),
        "replicas": Case(EXPERTS, Layout(replicate=2, shard=2, expert=2)),
        "across replicas": Case(replace(EXPERTS, shared=0), Layout(replicate=2, shard=2, expert=4)),
        "capacity in groups": Case(replace(EXPERTS, capacity=0.6), Layout(shard=4, expert=2), checkpointing=True),
        "one expert of four": Case(replace(EXPERTS, active=1), Layout(shard=4, expert=4), constant=True, bias=True),
    },
}


def build(case: Case) -> LanguageModel:
    """The whole model, in float64, the same in every process."""
    torch.manual_seed(3)
    model = replace(MODEL, feedforward=case.feedforward, bias=case.bias, repeat=case.repeat).build().double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, MixtureOfExperts):
                module.router.weight.normal_().mul_(0.0 if case.constant else 1.0)
    model.checkpointing = case.checkpointing
    return model


def gradients(model: LanguageModel, lanes: range) -> dict[str, list[float]]:
    """Leave the gradients of some lanes in the model; their losses by term."""
    task, losses = LanguageConfig().build(), {}
    for lane in lanes:
        draw = torch.Generator().manual_seed(lane)
        tokens = torch.randint(13, (3, 9), generator=draw)
        terms = task.terms(model, TextBatch(tokens[:, :-1], tokens[:, 1:]))
        counts = {"next_token": LANES * 24.0}
        parts = [term.total * (term.weight / counts.get(name, LANES)) for name, term in terms.items()]
        torch.stack(parts).sum().backward()
        for name, part in zip(terms, parts, strict=True):
            losses.setdefault(name, []).append(part.item())
    return losses


class Sent:
    """Counts the bytes that a rank sends to others in exchanges of rows, by calls of `all_to_all_single`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._send = distributed.all_to_all_single

    def __enter__(self) -> Sent:
        def send(output, x, received=None, sent=None, group=None):
            if sent is not None:
                here = sent[distributed.get_rank(group)]
                self.bytes += (sum(sent) - here) * x[0:1].numel() * x.element_size()
            return self._send(output, x, received, sent, group=group)

        distributed.all_to_all_single = send
        return self

    def __exit__(self, *error: object) -> None:
        distributed.all_to_all_single = self._send


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    for number, case in enumerate(CASES[size].values()):
        world = World(rank, size, rank, layout=case.layout).with_mesh()
        model = build(case)
        expert.apply(model, world)
        shard(model, world)
        with Sent() as sent:
            losses = gradients(model, world.lanes(LANES))
        tensors: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            cut = model.cuts.get(name)
            held = torch.full(whole_shape(parameter, cut), torch.nan, dtype=parameter.dtype)
            for piece in pieces(parameter, cut):
                held[piece.in_whole()] = local(parameter.grad)[piece.in_local()]
            tensors[name] = held
        save_file(tensors, folder / f"{number}-{rank}.safetensors")
        record = {"losses": losses, "bytes": sent.bytes}
        (folder / f"{number}-{rank}.json").write_text(json.dumps(record), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
