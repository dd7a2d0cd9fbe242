"""Small objects between the ranks, by the processors of their machines: also from a thread while a model is trained."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

from regard.errors import UserError
from regard.parallel.world import World

T = TypeVar("T")
#: What every rank gives, on every rank. A collective operation.
Exchange = Callable[[object], list[Any]]


def exchange_of(world: World) -> Exchange:
    """An exchange between all ranks, by a group of its own: a thread must not use that of the training."""
    if world.size == 1:
        return lambda value: [value]
    group = distributed.new_group(backend="gloo")

    def exchange(value: object) -> list[Any]:
        found: list[Any] = [None] * world.size
        distributed.all_gather_object(found, value, group=group)
        return found

    return exchange


def together(exchange: Exchange, work: Callable[[], T]) -> list[T]:
    """What ``work`` returns on each rank. An error on one of them is an error on all, which names the rank."""
    value, problem = None, None
    try:
        value = work()
    except Exception as error:
        problem = error
    every = exchange((value, None if problem is None else str(problem) or type(problem).__name__))
    if problem is not None:
        raise problem
    for rank, (_, text) in enumerate(every):
        if text is not None:
            raise UserError(f"rank {rank}: {text}")
    return [value for value, _ in every]
