"""Training waits for its batches."""

import statistics
import time

from regard.doctor import Check, Findings, Resources

#: The share of a step's time spent on making its batches: with half of it the device is idle half of the time.
STARVED = 0.4
STALLS = 16  # steps from which on a few slow ones are evidence
SLOW = 3.0  # times the median


class Starvation(Check):
    kind, description = "starvation", "training waits for data"
    needs_confirmation = True

    def on_resources(self, resources: Resources) -> Findings:
        if not resources.step_seconds:
            return
        waiting = resources.batch_seconds * self.run.micro_batches
        if waiting > STARVED * resources.step_seconds:
            evidence = f"a step's batches take {waiting * 1e3:.3g} of its {resources.step_seconds * 1e3:.3g} ms"
            cause = "text is read or prepared more slowly than the model trains on it"
            change = "put the text on a local disk, tokenize it beforehand, or a larger --data.batch"
            yield self.finding("data.batch", evidence, cause, change)
        else:
            yield from self._stalls(resources)

    def _stalls(self, resources: Resources) -> Findings:
        """A few batches that all others wait for; the batches of the slowest steps are made again to confirm it."""
        seconds = [taken for taken, _ in resources.recent]
        if len(seconds) < STALLS:
            return
        middle = statistics.median(seconds)
        slow = sorted((one for one in resources.recent if one[0] > SLOW * middle), key=lambda one: -one[0])
        lost = sum(taken - middle for taken, _ in slow)
        if lost < STARVED * sum(seconds):
            return
        began = time.perf_counter()
        for number in (number for _, numbers in slow[:2] for number in numbers):
            self.run.batch(number)
        if time.perf_counter() - began > sum(taken - middle for taken, _ in slow[:2]) / 2:
            share, numbers = lost / sum(seconds), ", ".join(str(numbers[0]) for _, numbers in slow[:3])
            evidence = f"{len(slow)} of {len(seconds)} steps took {share:.0%} of the time, such as batches {numbers}"
            cause = "some batches take far longer to make than others, and training waits for them"
            change = "put the text on a local disk, tokenize it beforehand, or prefetch batches"
            yield self.finding("data.batch", evidence, cause, change)
