"""One rank of a process group on one GPU: what the code for many ranks costs by itself, and that it computes the same.

NCCL refuses two ranks on a GPU. But a group of one rank runs most of what one of many runs: a mesh, DTensors, FSDP's
hooks and mixed precision, one reduction of gradients per update. So the same steps are trained plainly and as a rank,
and losses, time and memory are compared, with the collective operations that were called (PyTorch skips those of FSDP
in a group of one). A mixture of experts sends its tokens through NCCL's all-to-all to itself. Tensor and context
parallelism have nothing to cut on one rank; bench.ring has ring attention by a local loop. On a CPU the group is one
of gloo.

    python -m bench.one_rank --model gpt2 --batch 8 --accumulate 2 --steps 20
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.data import TextConfig
from regard.models import PRESETS
from regard.nn.experts.moe import Exchange, MixtureOfExperts, MoEConfig
from regard.parallel.expert import AllToAll
from regard.parallel.layout import DIMENSIONS
from regard.parallel.world import World
from regard.plan.speed import RepeatedBatch, random_batch
from regard.train import AdamWConfig, Experiment, TrainConfig
from regard.train.device import synchronize
from regard.train.engine import Engine

WARM = 3  # steps that are not timed


class Operations(TorchDispatchMode):
    """Counts the collective operations of an update."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operations on its shard, which come back here
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.__name__.partition(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def train(experiment: Experiment, world: World, steps: int) -> dict[str, Any]:
    """Train on one batch; losses, the median time of a step, peak memory, and the operations of the last step."""
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    engine = Engine(experiment, RepeatedBatch(random_batch(experiment)), world)  # type: ignore[arg-type]
    losses, seconds, operations = [], [], Operations()
    for step in range(steps):
        synchronize(world.device)
        began = time.perf_counter()
        if step < steps - 1:
            losses.append(engine.update().loss)
        else:
            with operations:
                losses.append(engine.update().loss)
        synchronize(world.device)
        seconds.append(time.perf_counter() - began)
    sharded = sum(isinstance(parameter, DTensor) for parameter in engine.model.parameters())
    peak = torch.cuda.max_memory_allocated() if world.device.type == "cuda" else None
    middle = statistics.median(seconds[WARM:-1])
    return {
        "losses": losses,
        "seconds": middle,
        "peak_bytes": peak,
        "sharded": sharded,
        "operations": operations.counts,
    }


def exchange_error(device: torch.device) -> float:
    """The largest difference of a mixture's outputs and gradients when tokens go through the process group."""
    torch.manual_seed(1)
    layer = MoEConfig(experts=8, active=2).build(256, bias=False).to(device).eval()
    assert isinstance(layer, MixtureOfExperts)
    world, found = distributed.group.WORLD, []
    assert world is not None
    for exchange in (Exchange(), AllToAll(world)):
        layer.exchange = exchange
        x = torch.linspace(-1, 1, 4096 * 256, device=device).view(1, 4096, 256).sin().requires_grad_()
        out = layer(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        found.append(torch.cat((out.detach(), gradient)))
    return float((found[0] - found[1]).abs().max())


def main() -> None:
    """Train twice and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2", choices=sorted(PRESETS))
    parser.add_argument("--layers", type=int, help="default: those of the preset")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.steps < WARM + 2:
        parser.error(f"--steps must be at least {WARM + 2}")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    model = replace(PRESETS[options.model], context=options.context, dropout=0.0)
    model = model.with_layers(options.layers) if options.layers else model
    config = TrainConfig(
        steps=options.steps,
        accumulate=options.accumulate,
        precision="bfloat16" if cuda else "float32",
        compile=False,
        optimizer=AdamWConfig(),
    )
    experiment = Experiment(model, TextConfig(batch=options.batch), train=config, seed=1)
    plain = train(experiment, World(device=device), options.steps)
    distributed.init_process_group("nccl" if cuda else "gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,) * len(DIMENSIONS), mesh_dim_names=DIMENSIONS)
    ranked = train(experiment, World(device=device, mesh=mesh), options.steps)
    exchanged = exchange_error(device)
    total = torch.ones(3, dtype=torch.float64, device=device)
    distributed.all_reduce(total)  # the host's sums
    assert total.tolist() == [1.0] * 3
    distributed.destroy_process_group()
    apart = max(abs(a - b) for a, b in zip(plain["losses"], ranked["losses"], strict=True))
    name = torch.cuda.get_device_name() if cuda else "cpu"
    print(json.dumps({"torch": torch.__version__, "device": name, "plain": plain, "one rank": ranked}))
    print(f"largest difference of the losses of {options.steps} steps: {apart:.3g} (loss {plain['losses'][-1]:.4f})")
    print(f"a step: {plain['seconds'] * 1e3:.1f} ms plain, {ranked['seconds'] * 1e3:.1f} ms as a rank")
    if cuda:
        print(f"peak memory: {plain['peak_bytes'] / 1e9:.2f} GB plain, {ranked['peak_bytes'] / 1e9:.2f} GB as a rank")
    print(f"a mixture through an all-to-all of one rank: largest difference {exchanged:.3g}")
    print(f"collective operations of a step as a rank: {dict(ranked['operations'])}")


if __name__ == "__main__":
    main()
