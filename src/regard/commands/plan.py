"""`regard plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from regard.commands.common import CommandOptions
from regard.commands.train import read_experiment
from regard.config import argument, dump, option
from regard.errors import UserError
from regard.parallel.layout import Layout

if TYPE_CHECKING:
    import torch

    from regard.plan import SpeedLaw, TrainingPlan
    from regard.plan.speed import Batches
    from regard.plan.trace import StepTrace
    from regard.train import Experiment

SIZES = ("layers", "heads", "width", "context", "vocabulary")
FLOPS = {"cpu": 2e10, "cuda": 5e12}  # of the largest step that is measured


@dataclass(frozen=True)
class PlanOptions(CommandOptions):
    """Options of `regard plan`."""

    recipe: str = argument("shakespeare", "a recipe's name or a TOML file")
    gpus: int = option(1, "number of ranks, each of which has a shard of the weights unless --layout says otherwise")
    layout: Layout = field(default_factory=Layout, metadata={"help": "how the ranks share the work"})
    hardware: str | None = option(None, "plan for a100, h100, h200 or b200 by its data sheet; default: this machine")
    memory: float | None = option(None, "GB of each device; default: that of the hardware, or of this machine")
    measure: bool = option(True, "do not measure small steps on this machine, so no time of a step is predicted")


def plan(options: PlanOptions, keys: Mapping[str, object]) -> int:
    """Say what a training needs and takes before it starts: nothing of its size is allocated.

    Parameters, FLOPs and activations by part, memory at the peak of a step, time on this machine, and the options with
    which it fits. Every key of the experiment is an option, as for `regard train`:

      --model gpt3-175b --gpus 1024 --hardware h100        a preset on many GPUs
      --gpus 64 --layout.tensor 8 --layout.replicate 2     a layout (docs/scale.md)
      --train.checkpointing true --data.batch 4            settings to compare
    """
    import torch

    from regard.models.device import find_device
    from regard.plan import HARDWARE, batches_of
    from regard.plan import plan as make
    from regard.train.guard import capacity

    options.check_at_least_one("gpus")
    experiment = read_experiment(options.recipe, keys)
    hardware = None if options.hardware is None else HARDWARE.get(options.hardware.lower())
    if options.hardware is not None and hardware is None:
        raise UserError(f"--hardware is {options.hardware!r}; known are {', '.join(HARDWARE)}")
    if options.gpus > 1 and hardware is None:
        hardware = HARDWARE["h100"]
    device = find_device(experiment.train.device)
    if experiment.train.precision == "auto":
        precision = "float32" if hardware is None and device.type == "cpu" else "bfloat16"
        experiment = replace(experiment, train=replace(experiment.train, precision=precision))
    limit = options.memory * 1e9 if options.memory else None if hardware else capacity(device)
    experiment, assumed = with_vocabulary(experiment)
    experiment, batches = batches_of(experiment)
    measured = hardware is None and options.measure and device.type in FLOPS
    law = measured_law(experiment, batches, device) if measured else None
    traced = device if hardware is None and device.type in FLOPS else torch.device("cpu")
    ranks = {"gpus": options.gpus, "layout": options.layout}
    made = make(experiment, **ranks, hardware=hardware, limit=limit, law=law, batch=batches, device=traced)
    text = "\n".join([*assumed, *lines(made, options.hardware or ("h100" if hardware else device.type))])
    options.show({**made.record(), "assumed": assumed}, text)
    return 0


def with_vocabulary(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """The experiment with the vocabulary that training gives its model, and what had to be assumed.

    One that the config or a preset sets is kept: `--model gpt3-175b` is planned with its own.
    """
    from regard.data import TextConfig
    from regard.data.sources import find_source

    model, data = experiment.model, experiment.data
    if experiment.init is not None or not isinstance(data, TextConfig):
        return experiment, []
    default = type(model)().vocabulary
    if model.vocabulary != default:
        return experiment, []
    size = data.tokenizer.known_size()
    if size is None and data.path is None and find_source(data.source).cached() is not None:
        size = data.build(model.context).vocabulary  # a source is small, and after a training its tokens are cached
    if size is not None:
        return replace(experiment, model=model.reading(size, None)), []
    text = data.path or f"'{data.source}'"
    return experiment, [
        f"a vocabulary of {default} is assumed: that of {text} is known when it has been read; give another with "
        "--model.vocabulary"
    ]


def measured_law(experiment: Experiment, batches: Batches, device: torch.device) -> SpeedLaw:
    """The law of this machine, from five small steps of experiments like this one."""
    from regard.plan import SpeedLaw, measure, measure_peaks, variants
    from regard.runs.waiting import progress

    chosen = variants(experiment, FLOPS[device.type], batches)
    steps = progress(chosen, len(chosen), "measuring steps")
    measured = [measure(one, batches(one), device) for one in steps]
    return SpeedLaw.fit(measured, measure_peaks(device), queued=device.type == "cuda")


def lines(made: TrainingPlan, device: str) -> Iterator[str]:
    """The plan for a person."""
    from regard.pages.numbers import count, duration, unit
    from regard.plan import TOKENS_PER_PARAMETER, UTILIZATION
    from regard.tasks import LanguageConfig

    trace, experiment, table = made.trace, made.experiment, dump(made.experiment.model)
    yield f"{experiment.model.kind}: {', '.join(f'{name} {table[name]:,}' for name in SIZES if name in table)}"
    yield from parts(trace) if trace.parts else [f"{trace.parameters:,} parameters"]
    flops, each = trace.micro_batch.flops, unit(trace.micro_batch.flops / trace.targets, "FLOP")
    yield f"a micro-batch of {trace.targets:,} targets: {unit(flops, 'FLOP')} forward and backward, {each} per target"
    if "heads" in table:
        rows, length = experiment.data.batch, experiment.model.context
        size = rows * table["heads"] * length**2 * (2 if experiment.train.precision != "float32" else 4)
        yield f"attention scores of a layer: {unit(size, 'B')} if a backend stores them, which only `reference` does"
    each = f" on each of {made.gpus:,} {device}" if made.gpus > 1 else f" on {device}"
    named = {name: unit(size, "B") for name, size in vars(made.memory).items() if size}
    yield f"memory{each}: {unit(made.memory.total, 'B')} ({', '.join(f'{n} {size}' for n, size in named.items())})"
    if trace.cache:
        length = experiment.model.context
        whole = unit(trace.cache * length, "B")
        yield f"KV cache: {unit(trace.cache, 'B')} per token, {whole} for {length:,} tokens"
    if made.gpus > 1:
        yield from communication(made)
    if made.seconds is not None:
        known = (
            f"± {made.error:.0%}, from five measured steps"
            if made.error is not None
            else f"at {UTILIZATION:.0%} of the peak"
        )
        yield f"a step: {duration(made.seconds)} ({known}), {count(made.tokens / made.seconds)} tokens/s"
    steps = made.steps
    if steps is not None:
        took = "" if made.seconds is None else f", {duration(steps * made.seconds)} without evaluations"
        yield f"the run: {steps:,} steps, {count(steps * made.tokens)} tokens, {unit(steps * made.flops, 'FLOP')}{took}"
    if isinstance(experiment.task, LanguageConfig):
        best, each = TOKENS_PER_PARAMETER * trace.parameters, TOKENS_PER_PARAMETER
        yield f"compute-optimal for this size: about {count(best)} tokens ({each} per parameter, Hoffmann et al. 2022)"
    if not made.fits and made.limit is not None:
        fix = f"it fits with {' '.join(made.fix)}" if made.fix else "no setting that was tried fits; lower its sizes"
        yield f"does not fit: {device} has {unit(made.limit, 'B')}; {fix}"


def communication(made: TrainingPlan) -> Iterator[str]:
    """What the layout sends, and how often it should save."""
    from regard.pages.numbers import duration, unit
    from regard.parallel.layout import DIMENSIONS
    from regard.plan.hardware import HOURS_BETWEEN_FAILURES, WRITE

    layout, kept = made.layout, made.checkpoints
    sizes = [f"{name} {size}" for name, size in zip(DIMENSIONS, layout.sizes, strict=True) if size > 1]
    sizes += [f"expert {layout.expert}"] if layout.expert > 1 else []
    yield f"layout: {', '.join(sizes)}; pipeline bubble: 0, as there is no pipeline"
    yield f"{'sent and received by each rank':30} {'per step':>12} {'time':>12} {'not hidden':>12}"
    for kind, size, seconds, exposed in made.traffic:
        times = "" if seconds is None else f" {duration(seconds):>12} {duration(exposed or 0.0):>12}"
        yield f"{kind:30} {unit(size, 'B'):>12}{times}"
    yield (
        f"checkpoints: every {duration(kept.interval)} ({kept.lost:.1%} of the time is lost), if a device fails every "
        f"{HOURS_BETWEEN_FAILURES:,.0f} hours (Llama 3, 2024), one of {made.gpus:,} every {duration(kept.failures)}, "
        f"and each rank writes {unit(WRITE, 'B')}/s: {duration(kept.save)} (Daly 2006)"
    )


def parts(trace: StepTrace) -> Iterator[str]:
    """The table of parts."""
    from regard.pages.numbers import unit

    yield f"{'part':30} {'parameters':>16} {'forward':>12} {'activations':>12}"
    for name, part in trace.parts.items():
        yield f"{name:30} {part.parameters:16,} {unit(part.flops, 'FLOP'):>12} {unit(part.activations, 'B'):>12}"
    forward = sum(part.flops for part in trace.parts.values())
    kept = sum(part.activations for part in trace.parts.values())
    yield f"{'all':30} {trace.parameters:16,} {unit(forward, 'FLOP'):>12} {unit(kept, 'B'):>12}"
