"""Runs recorded operations again, on the CPU, with the bits of the first time and little more than one tensor at once.

CPU random numbers are a sequence, so random operations run in their order, and everything else as late as possible.
Numbers that are overwritten later, such as the default initialization of nn.Linear, are drawn and dropped, since those
after them depend on it; operations whose result nobody needs do not run at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard.parallel.recording import GeneratorState, RecordedOperation, StorageView, tensors_in

Interval = tuple[int, int]


class OperationReplay:
    """One run of the operations that decide the tensors that are wanted."""

    def __init__(
        self, operations: Sequence[RecordedOperation], sizes: Sequence[int], wanted: Mapping[str, StorageView]
    ):
        self._operations, self._wanted = operations, wanted
        self._live = live_operations(operations, wanted.values())
        self._memory, self._done = ReplayMemory(sizes), set[int]()
        self._before: dict[int, set[int]] = {}  # by operation: those that have to run before it
        self._last: dict[int, int] = {}  # by storage: the last operation that changes it
        self._order()
        self._uses = Counter(place.storage for place in wanted.values())
        self._uses.update(storage for number in self._live for storage in operations[number].touches)

    def run(self, put: Callable[[str, Tensor], None]) -> None:
        """``put(name, whole)`` with the values of each tensor that is wanted, one after another.

        Sets the state of the CPU's default generator and draws from it.
        """
        due = self._due()
        with torch.no_grad():
            self._finish(due[-1], put)
            for number in self._draws():
                operation = self._operations[number]
                if operation.seed is not None:
                    torch.default_generator.set_state(operation.seed)
                if number in self._live:
                    self._execute(number)
                else:
                    ReplayMemory(self._memory.sizes).run(operation)
                self._finish(due[number], put)

    def _order(self) -> None:
        readers = defaultdict[int, set[int]](set)
        for number in sorted(self._live):
            one = self._operations[number]
            before = {self._last[storage] for storage in one.touches if storage in self._last}
            self._before[number] = before.union(*(readers[storage] for storage in one.writes))
            for storage in one.writes:
                self._last[storage] = number
                readers[storage] = set()
            for storage in one.touches - one.writes:
                readers[storage].add(number)

    def _due(self) -> dict[int, list[str]]:
        """The tensors by the last operation with random numbers that decides them; -1 if there is none."""
        at = dict[int, int]()
        for number, before in self._before.items():
            own = number if self._operations[number].random else -1
            at[number] = max(own, max((at[one] for one in before), default=-1))
        due = defaultdict[int, list[str]](list)
        for name, place in self._wanted.items():
            due[at[self._last[place.storage]] if place.storage in self._last else -1].append(name)
        return due

    def _draws(self) -> list[int]:
        """The operations that use the default generator, up to the last live one after each seed."""
        found, useful = list[int](), False
        for number in reversed(range(len(self._operations))):
            one = self._operations[number]
            if one.random:
                useful = useful or number in self._live
                if useful:
                    found.append(number)
                useful = useful and one.seed is None
        return found[::-1]

    def _finish(self, names: list[str], put: Callable[[str, Tensor], None]) -> None:
        for name in names:
            place = self._wanted[name]
            if place.storage in self._last:
                self._execute(self._last[place.storage])
            put(name, self._memory.tensor(place))
            self._free([place.storage])

    def _execute(self, number: int) -> None:
        """Run an operation, after those that it depends on."""
        found, left = set[int](), [number]
        while left:
            if (one := left.pop()) not in found and one not in self._done:
                found.add(one)
                left += self._before[one]
        for one in sorted(found):
            self._memory.run(self._operations[one])
            self._free(self._operations[one].touches)
        self._done |= found

    def _free(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self._uses[storage] -= 1
            if not self._uses[storage]:
                self._memory.storages.pop(storage, None)


class ReplayMemory:
    """Storages of the CPU, by number."""

    def __init__(self, sizes: Sequence[int]):
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.sizes = sizes

    def tensor(self, place: StorageView) -> Tensor:
        """The tensor at a place, without values if none were put there."""
        if place.storage not in self.storages:
            self.storages[place.storage] = torch.UntypedStorage(self.sizes[place.storage])
        storage = self.storages[place.storage]
        return torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.shape, place.stride)

    def run(self, operation: RecordedOperation) -> None:
        """Run an operation on these storages."""
        given = tree_map_only(StorageView, self.tensor, (operation.args, operation.kwargs))
        args, kwargs = tree_map_only(GeneratorState, _generator, given)
        for place, made in zip(operation.made, tensors_in(operation.run(*args, **kwargs)), strict=True):
            if place.storage not in operation.new:
                continue
            storage = made.untyped_storage()
            layout = made.dtype, tuple(made.shape), made.stride(), made.storage_offset(), storage.nbytes()
            if layout == (place.dtype, place.shape, place.stride, place.offset, self.sizes[place.storage]):
                self.storages[place.storage] = storage
            else:  # a kernel of the CPU may choose another layout
                self.tensor(place).copy_(made)


def live_operations(operations: Sequence[RecordedOperation], wanted: Iterable[StorageView]) -> set[int]:
    """The operations that decide the values of these tensors."""
    found, open_ = set[int](), defaultdict[int, list[Interval]](list)  # bytes that are still to be decided

    def want(place: StorageView) -> None:
        open_[place.storage] = [*_without(open_[place.storage], place.extent), place.extent]

    for place in wanted:
        want(place)
    for number in reversed(range(len(operations))):
        one = operations[number]
        decides = any(open_[storage] for storage in one.new) or any(
            max(low, place.extent[0]) < min(high, place.extent[1])
            for place in one.changed
            for low, high in open_[place.storage]
        )
        if not (decides or (one.random and one.reads)):  # how much is drawn may depend on what is read
            continue
        found.add(number)
        for storage in one.new:
            open_[storage] = []
        for place in one.changed:
            if one.fills and place.dense:
                open_[place.storage] = _without(open_[place.storage], place.extent)
            else:
                want(place)
        for place in one.reads:
            want(place)
    return found


def _without(intervals: list[Interval], one: Interval) -> list[Interval]:
    """
    >>> _without([(0, 10), (20, 30)], (5, 22))
    [(0, 5), (22, 30)]
    """
    parts = [part for low, high in intervals for part in ((low, min(high, one[0])), (max(low, one[1]), high))]
    return [(low, high) for low, high in parts if low < high]


def _generator(given: GeneratorState) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(given.state)
    return generator
