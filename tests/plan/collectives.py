"""Counts the bytes that a rank receives in collective operations, by kind of communication."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from regard.attention.mechanisms.masked import WindowConfig
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.nn.experts.moe import MoEConfig
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.plan.speed import RepeatedBatch, random_batch
from regard.train import Experiment, MuonConfig, TrainConfig
from regard.train.engine import Engine

NAMESPACES = ("c10d", "_c10d_functional")
SILENT = ("wait", "_wrap", "wrap", "barrier")  # they move nothing


class Collectives(TorchDispatchMode):
    """Counts what the operations of this process receive from other ranks, with any of the best algorithms."""

    def __init__(self, world: World):
        super().__init__()
        self.bytes: dict[str, float] = defaultdict(float)
        dimensions = ("replicate", "context", "tensor", "expert")
        groups = {name: world.group(name) for name in dimensions}
        self.dimensions = {group.group_name: name for name, group in groups.items() if group is not None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor runs operations on its shards, which come back here
        out = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES and not func.__name__.startswith(SILENT):
            self.count(func.__name__.partition(".")[0].strip("_"), args, out)
        return out

    def count(self, operation: str, args: Any, out: Any) -> None:
        """Add the bytes of one operation."""
        group = _group(args)
        ranks, given = group.size(), [x for x in tree_iter(args) if isinstance(x, Tensor)]
        sizes = [x.numel() * x.element_size() for x in given]
        backward = torch._C._current_graph_task_id() != -1
        if operation == "allgather_base":
            self.bytes["weights backward" if backward else "weights forward"] += sizes[0] * (ranks - 1) / ranks
        elif operation == "all_gather_into_tensor":
            self.bytes["Muon's matrices"] += sizes[0] * (ranks - 1)
        elif operation == "reduce_scatter_base":
            self.bytes["gradients"] += sizes[1] * (ranks - 1) / ranks
        elif operation in ("allreduce", "all_reduce", "all_reduce_"):
            over = self.dimensions.get(group.group_name, "world")
            kind = {"replicate": "replicas", "world": "host"}.get(over, over)
            kind = "host" if given[0].dtype == torch.float64 else kind
            self.bytes[kind] += 2 * sum(sizes) * (ranks - 1) / ranks
        elif operation in ("send", "recv"):
            self.bytes["ring sent" if operation == "send" else "ring"] += sum(sizes)
        elif operation == "allgather" and self.dimensions.get(group.group_name) == "tensor":
            self.bytes["Muon's matrices"] += sizes[-1] * (ranks - 1)
        elif operation == "allgather":
            self.bytes["ring"] += sizes[-1] * (ranks - 1)
            self.bytes["ring sent"] += sizes[-1] * (ranks - 1)
        elif operation == "alltoall_base":
            self.bytes["experts"] += sizes[1] * (ranks - 1) / ranks
        else:
            raise AssertionError(f"{operation} is not counted")


def _group(args: Any) -> ProcessGroup:
    for one in args:
        if isinstance(one, torch.ScriptObject):
            try:
                return ProcessGroup.unbox(one)
            except RuntimeError:  # an operation such as a sum
                continue
        if isinstance(one, str) and one not in ("sum", "max", "min"):
            return distributed.distributed_c10d._resolve_process_group(one)  # type: ignore[arg-type]
    raise AssertionError("no group")


MODEL = GPTConfig(vocabulary=65, context=256, layers=2, heads=4, kv_heads=2, width=32)
EXPERTS = replace(MODEL, feedforward=MoEConfig(experts=4, active=2))
NEAR = replace(MODEL, attention=WindowConfig(size=64))
TRAIN = TrainConfig(precision="float32", compile=False, accumulate=2, steps=5, device="cpu")
MUON, AGAIN = replace(TRAIN, optimizer=MuonConfig()), replace(TRAIN, checkpointing=True)
RANKS = 4
#: Layouts of four ranks, and what they train. 65 rows of the embedding are no multiple of the ranks.
CASES: dict[str, tuple[Layout, Experiment]] = {
    "fsdp": (Layout(shard=4), Experiment(MODEL, TextConfig(batch=4), train=TRAIN)),
    "fsdp recomputed": (Layout(shard=4), Experiment(MODEL, TextConfig(batch=4), train=AGAIN)),
    "fsdp muon": (Layout(shard=4), Experiment(MODEL, TextConfig(batch=4), train=MUON)),
    "hsdp": (Layout(replicate=2, shard=2), Experiment(MODEL, TextConfig(batch=4), train=TRAIN)),
    "tensor": (Layout(shard=1, tensor=4), Experiment(replace(MODEL, kv_heads=4), TextConfig(batch=4), train=TRAIN)),
    "tensor muon": (Layout(shard=2, tensor=2), Experiment(MODEL, TextConfig(batch=4), train=MUON)),
    "tensor recomputed": (Layout(shard=2, tensor=2), Experiment(MODEL, TextConfig(batch=4), train=AGAIN)),
}
#: What ranks send in these follows from what others have sent: no group that is made up can run them.
REAL: dict[str, tuple[Layout, Experiment]] = {
    "context": (Layout(shard=1, context=4), Experiment(MODEL, TextConfig(batch=4), train=TRAIN)),
    "context window": (Layout(shard=2, context=2), Experiment(NEAR, TextConfig(batch=4), train=TRAIN)),
    "context recomputed": (Layout(shard=1, context=4), Experiment(MODEL, TextConfig(batch=4), train=AGAIN)),
    "experts": (Layout(shard=4, expert=2), Experiment(EXPERTS, TextConfig(batch=4), train=TRAIN)),
    "context x tensor": (Layout(shard=1, context=2, tensor=2), Experiment(MODEL, TextConfig(batch=4), train=TRAIN)),
}


def counted(layout: Layout, experiment: Experiment, rank: int) -> dict[str, float]:
    """The bytes that a rank receives in one update, by kind; the process group exists."""
    world = World(rank, RANKS, rank, torch.device("cpu"), layout=layout).with_mesh()
    engine = Engine(experiment, RepeatedBatch(random_batch(experiment)), world)  # type: ignore[arg-type]
    with Collectives(world) as found:
        engine.update()
    return dict(found.bytes)
