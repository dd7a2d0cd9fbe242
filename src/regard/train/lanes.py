"""The lanes of a run: logical ranks that decide batches and dropout, a fixed number, whatever processes there are."""

from dataclasses import replace

from regard.errors import UserError
from regard.parallel.world import World
from regard.train.experiment import Experiment


def with_lanes(experiment: Experiment, world: World, *, resumed: bool) -> Experiment:
    """The experiment with its number of lanes, if that is above 1; one that the ranks cannot share is refused.

    A run whose config has no number was begun with 1.
    """
    train = experiment.train
    count = train.lanes or (1 if resumed else world.parts)
    own = world.lanes(count)
    if experiment.task.over_ranks and (len(own) > 1 or world.copies > 1):
        raise UserError(
            f"the task {experiment.task.kind} compares the rows of all processes, so each of them has one lane: use "
            f"{count} process{'es' * (count > 1)} that share the batch, or another --train.lanes in a new run"
        )
    return replace(experiment, train=replace(train, lanes=count if count > 1 else train.lanes))
