"""Plans against measured steps: a law of time is fitted to 5 experiments and predicts 25 others; memory is not fitted.

    python -m bench.plan [--seed 1] [--out FILE.json]            on the CPU, each experiment in a process of its own
    python -m bench.plan --device cuda [--out FILE.json]         on a GPU, one after another in this process

On the CPU the clock is that of the process, and memory is its peak beyond what is there before the first step. On a
GPU it is the peak that PyTorch allocates. An experiment that fails is recorded with its reason. The 5 are the first
ones that were drawn and measured.

    python -m bench.plan --read FILE.json [--device cuda]        compare what was measured, again
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FITTED, PREDICTED = 5, 25
CHOICES: dict[str, list[Any]] = {
    "--model.layers": [2, 3, 4, 6, 8],
    "--model.width": [128, 192, 256, 384, 512],
    "--model.context": [64, 128, 256, 512],
    "--data.batch": [4, 8, 16, 32],
    "--model.feedforward": ["relu2", "swiglu"],
    "--model.attention": ["softmax", "softmax", "s4d", "linear"],
    "--model.vocabulary": [256, 4096, 16384],
    "--train.accumulate": [1, 1, 2],
    "--train.checkpointing": ["false", "false", "true"],
    "--train.optimizer": ["adamw", "muon"],
}
ON_GPU: dict[str, list[Any]] = {
    **CHOICES,
    "--model.layers": [2, 4, 8, 12],
    "--model.width": [128, 256, 512, 768, 1024],
    "--model.context": [256, 512, 1024, 2048],
    "--data.batch": [4, 8, 16, 32],
    "--model.attention": [*["softmax"] * 7, "linear", "linear", "window"],
    "--model.vocabulary": [256, 8192, 50304],
    "--train.precision": ["bfloat16", "bfloat16", "float32"],
}
RECIPES = ["shakespeare", "shakespeare", "shakespeare-mingru", "shakespeare-conv", "shakespeare-lstm"]
RECIPES_ON_GPU = [*["shakespeare"] * 5, "shakespeare-conv", "shakespeare-lstm", "shakespeare-moe"]
SMALL = [f"--model.{key}" for key in ("layers=1", "width=64", "context=16", "vocabulary=64")] + ["--data.batch=1"]
FLOPS = 1e11  # of a step at most
FLOPS_ON_GPU = 4e12  # the same, of float32; 16-bit formats may take as much time
PARAMETERS = 170e6  # at most, on a GPU
HALF = 15  # how much faster GPUs multiply 16-bit formats than float32 (NVIDIA's data sheets)
WORKERS, TRACING = 8, 100  # processes that trace at a time, and seconds for all of them
LIMIT = 300  # seconds after which no further experiment is measured on a GPU


def experiments(seed: int, device: str) -> Iterator[list[str]]:
    """Random recipes and options that are valid and not too long."""
    from regard.commands.train import read_experiment
    from regard.errors import UserError

    on_gpu = device == "cuda"
    draw = random.Random(seed)
    while True:
        recipe = draw.choice(RECIPES_ON_GPU if on_gpu else RECIPES)
        keys = {key: draw.choice(values) for key, values in (ON_GPU if on_gpu else CHOICES).items()}
        if recipe != "shakespeare":
            for name in ("feedforward", "attention"):
                del keys[f"--model.{name}"]
        arguments = [f"{key}={value}" for key, value in keys.items()]
        try:
            experiment = read_experiment(recipe, arguments)
            if short(experiment, on_gpu):
                yield [recipe, *arguments]
        except UserError:
            continue


def short(experiment: Any, on_gpu: bool) -> bool:
    """Whether a step is not too long; on a GPU by the number of parameters, as a trace would take seconds."""
    from regard.models.shapes import build_on_meta
    from regard.plan import trace
    from regard.plan.size import parameters, parameters_without_embeddings

    if not on_gpu:
        return trace(experiment).micro_batch.flops * experiment.train.accumulate <= FLOPS
    model = build_on_meta(experiment.model)
    tokens = experiment.data.batch * experiment.model.context * experiment.train.accumulate
    speed = HALF if experiment.train.precision == "bfloat16" else 1
    flops = 6 * parameters_without_embeddings(model) * tokens
    return parameters(model) <= PARAMETERS and flops <= FLOPS_ON_GPU * speed


def predicted(arguments: list[str], device: str) -> dict[str, Any]:
    """The plan of one experiment: traced for the device, or for the CPU if that fails."""
    import torch

    from regard.commands.train import read_experiment
    from regard.plan import plan
    from regard.plan.speed import whole_step

    torch.set_num_threads(1)
    experiment = read_experiment(arguments[0], arguments[1:])
    record: dict[str, Any] = {}
    for kind in dict.fromkeys((device, "cpu")):
        try:
            began = time.perf_counter()
            made = plan(experiment, fixes=False, device=torch.device(kind))
            memory = vars(made.memory)
            step = written(whole_step(made.trace, experiment.train.accumulate))
            one = {"memory": memory, "planned": made.memory.total, "took": time.perf_counter() - began}
            return record | {"plan": {**one, "parameters": made.trace.parameters, "extra": made.trace.extra, **step}}
        except Exception as problem:  # of PyTorch's fake tensors, for instance
            record[f"problem_{kind}"] = f"{type(problem).__name__}: {problem}"[:600]
    return record | {"problem": f"it cannot be traced: {record[f'problem_{device}']}"}


def written(step: Any) -> dict[str, Any]:
    """A step for a file; ``read`` is its inverse."""

    def rounded(x: Any) -> Any:
        return x if isinstance(x, float) else [float(f"{value:.5g}") for value in x]

    parts = {name: [[rounded(x) for x in one] for one in part] for name, part in step.timeline._asdict().items()}
    return {"step": {**parts, "accumulate": step.accumulate, "flops": step.flops}}


def read(record: dict[str, Any]) -> Any:
    """The measured step of a record."""
    from regard.plan import MeasuredStep, StepWork, Timeline, TimelineSegment

    step = record["plan"]["step"]
    timeline = Timeline(*(tuple(TimelineSegment(*one) for one in step[name]) for name in Timeline._fields))
    return MeasuredStep(StepWork(timeline, step["accumulate"], step["flops"]), record["seconds"])


def child(arguments: list[str]) -> None:
    """Measure one experiment on the CPU, in a process that has done nothing else, and print its seconds and memory.

    Libraries are loaded by a step of a small experiment. Freed memory is kept as in a training.
    """
    import torch

    from regard.commands.train import read_experiment
    from regard.config import override
    from regard.plan import random_batch
    from regard.plan.speed import step_seconds
    from regard.train.guard import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    experiment, cpu = read_experiment(arguments[0], arguments[1:]), torch.device("cpu")
    small = override(experiment, SMALL)
    step_seconds(small, random_batch(small), cpu)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = step_seconds(experiment, random_batch(experiment), cpu, time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": seconds, "memory": peak * 1024}))


def on_cpu(seed: int) -> Iterator[dict[str, Any]]:
    """All experiments, each in a process."""
    for arguments in experiments(seed, "cpu"):
        command = [sys.executable, "-m", "bench.plan", "--child", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            yield {"arguments": arguments, "problem": "".join(done.stderr.strip().splitlines()[-1:])}
        else:
            yield {"arguments": arguments, **predicted(arguments, "cpu"), **json.loads(done.stdout.splitlines()[-1])}


def on_gpu(seed: int, device: str) -> Iterator[dict[str, Any]]:
    """All experiments, traced by several processes, and measured one after another."""
    drawn = experiments(seed, "cuda")
    chosen = [next(drawn) for _ in range(FITTED + PREDICTED + 4)]  # some more, as some may fail
    began, plans = time.perf_counter(), []
    with multiprocessing.get_context("spawn").Pool(min(WORKERS, os.cpu_count() or 1)) as pool:
        started = [pool.apply_async(predicted, (arguments, device)) for arguments in chosen]
        for one in started:
            try:
                plans.append(one.get(timeout=max(0.1, TRACING - (time.perf_counter() - began))))
            except multiprocessing.TimeoutError:
                plans.append({"problem": f"it was not traced in {TRACING} s"})
    print(f"traced in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    for arguments, planned in zip(chosen, plans, strict=True):
        record = {"arguments": arguments, **planned}
        if time.perf_counter() - began > LIMIT:
            return
        try:
            yield record | measured(arguments, device)
        except Exception as problem:  # out of memory, a kernel that cannot be compiled, ...
            yield record | {"problem": f"{type(problem).__name__}: {problem}"[:600]}


def measured(arguments: list[str], device: str) -> dict[str, Any]:
    """Seconds and peak memory of one experiment."""
    import torch

    from regard.commands.train import read_experiment
    from regard.plan import random_batch
    from regard.plan.speed import step_seconds

    experiment, cuda = read_experiment(arguments[0], arguments[1:]), device == "cuda"
    before = emptied() if cuda else 0
    seconds = step_seconds(experiment, random_batch(experiment), torch.device(device))
    if not cuda:
        return {"seconds": seconds, "memory": 1}
    torch.cuda.synchronize()
    return {"seconds": seconds, "memory": torch.cuda.max_memory_allocated() - before, "before": before}


def emptied() -> int:
    """Free what earlier experiments left, and count from here; the bytes that stay."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def compare(records: list[dict[str, Any]], peaks: list[float], device: str) -> None:
    """Fit to the first experiments, and print the errors of all."""
    from regard.plan import Peaks, SpeedLaw

    steps = [read(record) for record in records]
    law = SpeedLaw.fit(steps[:FITTED], Peaks(*peaks), queued=device == "cuda")
    for place, (record, step) in enumerate(zip(records, steps, strict=True)):
        record["error"] = law.seconds(step.step) / step.seconds - 1
        record["memory_error"] = record["plan"]["planned"] / max(record["memory"], 1) - 1
        line = f"{record['seconds'] * 1e3:8.1f} ms {record['error']:+6.0%}  {record['memory'] / 1e6:8.1f} MB "
        mark = "fitted " if place < FITTED else ""
        print(f"{line}{record['memory_error']:+6.1%}  {mark}{' '.join(record['arguments'])}")
    print(f"{Peaks(*peaks)}, {law}")
    left = records[FITTED:]
    print(f"time: {spread([one['error'] for one in left])} of {len(left)} experiments that were not fitted")
    print(f"memory: {spread([one['memory_error'] for one in left])} of the same")
    bound = 0.1 if device == "cuda" else 0.2
    print(f"memory: {sum(abs(one['memory_error']) <= bound for one in left)} of {len(left)} within {bound:.0%}")


def spread(errors: list[float]) -> str:
    """Median, 90th percentile and the largest."""
    sizes = sorted(map(abs, errors))
    tenth = sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))]
    return f"median error {statistics.median(sizes):.1%}, 90th percentile {tenth:.1%}, largest {sizes[-1]:.1%}"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--out", type=Path)
    reader.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    reader.add_argument("--read", type=Path)
    reader.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.child:
        child(options.child)
        return
    if options.read:
        found = json.loads(options.read.read_text())
        compare(found["measured"], found["peaks"], options.device)
        return
    import torch

    from regard.plan import measure_peaks

    torch.set_num_threads(1)
    found: dict[str, Any] = {"peaks": measure_peaks(torch.device(options.device)), "measured": [], "failed": []}
    records, failed = found["measured"], found["failed"]
    for record in on_cpu(options.seed) if options.device == "cpu" else on_gpu(options.seed, options.device):
        (failed if "problem" in record else records).append(record)
        print(json.dumps({key: value for key, value in record.items() if key != "plan"}), file=sys.stderr, flush=True)
        if options.out:  # also if it is ended early
            options.out.write_text(json.dumps(found))
        if len(records) == FITTED + PREDICTED:
            break
    compare(records, found["peaks"], options.device)
    if options.out:
        options.out.write_text(json.dumps(found))
    for record in failed:
        print(f"failed: {' '.join(record['arguments'])}: {record['problem']}")


if __name__ == "__main__":
    main()
