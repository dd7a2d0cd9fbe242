"""What the ranks of a context group read: each its own tokens of every row (``parallel/context.py``)."""

from typing import TypeVar

from regard.attention import Range
from regard.attention.slots import select
from regard.data import Batch
from regard.data.base import TextBatch
from regard.parallel.context import positions, refuse
from regard.parallel.layout import DIMENSIONS
from regard.parallel.world import World
from regard.tasks import LanguageTask, Task

B = TypeVar("B", bound=Batch)


def check_task(task: Task, world: World) -> None:
    """Refuse a task whose loss of a token does not follow from the features of that token."""
    if world.layout.context > 1 and type(task) is not LanguageTask:
        refuse([f"The task {type(task).__name__} needs whole rows: use --task language"])


def cut(batch: B, world: World) -> B:
    """The part of a batch of whole rows that this rank holds."""
    size = world.layout.context
    if size == 1:
        return batch
    if not isinstance(batch, TextBatch):
        refuse([f"A {type(batch).__name__} cannot be cut: use --task language and its data"])
        return batch
    length = batch.inputs.shape[1]
    if length % (2 * size):
        nearest = max(1, round(length / (2 * size))) * 2 * size
        refuse([f"{size} ranks cannot share rows of {length} tokens evenly: set --model.context {nearest}"])
    place = world.layout.coordinates(world.rank)[DIMENSIONS.index("context")]
    index = positions(length, place, size).to(batch.inputs.device)
    slots = Range(length) if batch.slots is None else batch.slots
    return batch._replace(
        inputs=batch.inputs[:, index],
        targets=batch.targets[:, index],
        slots=select(slots, index),
        words=None if batch.words is None else batch.words[:, index],
    )
