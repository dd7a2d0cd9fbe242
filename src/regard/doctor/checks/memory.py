"""Memory that is almost full, with a batch size that fits."""

from regard.doctor import Check, Findings, Resources
from regard.train.guard import OutOfMemory

#: The share of the available memory in use: allocators need a few percent of slack for blocks of unequal size. And the
#: share that a suggested batch size may use.
FULL, ROOMY = 0.92, 0.8
GIB = 2**30


class MemoryFull(Check):
    kind, description = "memory", "memory is almost full"

    def on_resources(self, resources: Resources) -> Findings:
        used, limit = resources.memory, resources.memory_limit
        if limit and used >= FULL * limit:
            evidence = f"{used / GIB:.2f} of {limit / GIB:.2f} GiB"
            cause = "the activations that the backward pass needs grow with the batch"
            yield self.finding("data.batch", evidence, cause, self._fitting(used, resources.memory_before, limit))

    def on_failure(self, error: BaseException) -> Findings:
        if isinstance(error, OutOfMemory):
            cause = "the activations that the backward pass needs do not fit"
            yield self.finding("data.batch", error.problem, cause, error.fix.removeprefix("use "))

    def _fitting(self, used: int, before: int, limit: int) -> str:
        """A batch size that fits, with as many tokens per update: activations are proportional to it."""
        experiment = self.run.experiment
        batch, accumulate = experiment.data.batch, experiment.train.accumulate
        activations = used - min(before, used)
        sizes = [size for size in range(batch // 2, 0, -1) if batch % size == 0]
        fits = (size for size in sizes if used - activations * (1 - size / batch) < ROOMY * limit)
        size = next(fits, sizes[0] if sizes else 0)
        if size:
            return f"--data.batch {size} --train.accumulate {accumulate * batch // size}"
        return "a smaller --model.width" if experiment.train.checkpointing else "--train.checkpointing true"
