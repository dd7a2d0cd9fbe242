"""The operations that make a model's tensors, recorded without memory for them.

This is deferred initialization (as in torchdistX): the constructor runs on the meta device, which it takes for the CPU,
and every operation that makes or changes a tensor is kept. `replay` runs them again.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map_only

aten = torch.ops.aten
META, CPU = torch.device("meta"), torch.device("cpu")
#: They make a tensor without values.
_EMPTY = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
#: They overwrite a tensor and do not read it. Where another one does so too, more memory is needed, nothing else.
_FILLS = {aten.normal_, aten.uniform_, aten.exponential_, aten.random_, aten.fill_, aten.zero_, aten.copy_}
_MARK = (
    0x5EED << 40
)  # seeds of the default generator while recording, by which one that the constructor sets is noticed


class Unrecordable(Exception):
    """Something that the operations on tensors do not say; the message names it."""


@dataclass(frozen=True)
class StorageView:
    """Where a tensor lies: its storage, by number, and its layout there."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def extent(self) -> tuple[int, int]:
        """Its first element in the storage and the one after its last, as numbers of bytes."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        end = 0 if 0 in self.shape else last + 1
        return self.offset * self.dtype.itemsize, (self.offset + end) * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        """Whether it has every element of its extent."""
        low, high = self.extent
        return high - low == torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class GeneratorState:
    """The state of a generator of the constructor's own, at one operation."""

    state: Tensor


@dataclass(frozen=True, eq=False)
class RecordedOperation:
    """One recorded operation. Tensors among its arguments are a `StorageView`."""

    run: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    made: list[StorageView]  # the tensors of its result
    new: frozenset[int]  # storages that it makes
    reads: list[StorageView]
    changed: list[StorageView]  # what it changes in place
    fills: bool = False  # it does not read what it changes
    random: bool = False  # with numbers of the default generator
    seed: Tensor | None = None  # the default generator's state is set to this before

    @property
    def writes(self) -> set[int]:
        """The storages that it makes or changes."""
        return {*self.new, *(place.storage for place in self.changed)}

    @property
    def touches(self) -> set[int]:
        """All storages that it needs."""
        return {*self.writes, *(place.storage for place in self.reads)}


class Recorder(TorchDispatchMode):
    """A context in which tensors are made on the meta device, and operations on them are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[RecordedOperation] = []
        self.sizes: list[int] = []  # bytes of each storage
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}  # kept, so that no address is used twice
        self._results: list[weakref.ref[Tensor]] = []
        self._before = self._seed = torch.default_generator.get_state()  # the latter: None once an operation has it
        self._mark = _MARK
        self._appearance = _Appearance()

    def __enter__(self) -> Recorder:
        torch.default_generator.manual_seed(self._mark)
        self._appearance.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._appearance.__exit__(*error)
        torch.default_generator.set_state(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._call(func, args, dict(kwargs or {}))

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is aten.lift_fresh.default:  # numbers of Python or numpy
            return args[0] if args[0].is_meta else self.constant(partial(torch.clone, args[0].clone()))
        changed = tensors_in(list(_changed(func, args, kwargs)))
        if not all(x.is_meta for x in changed):
            raise Unrecordable(f"{func} changes a tensor that the constructor has not made")
        args, kwargs = tree_map_only(Tensor, self._on_meta, (args, kwargs))
        given = tensors_in((args, kwargs))
        takes_device = "device" in _arguments(func)
        if "device" in kwargs or (takes_device and not given):
            kwargs["device"] = META
        random, generator = torch.Tag.nondeterministic_seeded in func.tags, kwargs.get("generator")
        if generator is not None:
            kwargs["generator"] = None
        # Random numbers on the meta device may import torch's compiler, which takes seconds.
        out = changed[0] if random and changed else func(*args, **kwargs)
        results, before = tensors_in(out), {x.untyped_storage()._cdata for x in given}
        new = frozenset(self._number(x) for x in results if x.untyped_storage()._cdata not in before)
        self._results += map(weakref.ref, results)
        if func._overloadpacket in _EMPTY or not (new or changed):
            return out  # no values, or a view
        if takes_device and not given and kwargs.get("dtype") is None and "dtype" in _arguments(func):
            kwargs["dtype"] = results[0].dtype  # the default one may be another later
        if generator is not None and generator is not torch.default_generator:
            kwargs["generator"] = self._advanced(generator, func, args, kwargs)
            random = False
        self.operations.append(
            RecordedOperation(
                func,
                *tree_map_only(Tensor, self.place, (args, _on_cpu(kwargs))),
                made=[self.place(x) for x in results],
                new=new,
                reads=[self.place(x) for x in given if not any(x is y for y in changed)],
                changed=[self.place(x) for x in changed],
                fills=func._overloadpacket in _FILLS,
                random=random,
                seed=self._next_seed() if random else None,
            )
        )
        return out

    def constant(self, read: Callable[[], Tensor]) -> Tensor:
        """A tensor on the meta device for the one that ``read`` gives, now for its shape and later for its values."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            out = torch.empty_like(read(), device=META)
        new = frozenset([self._number(out)])
        self._results.append(weakref.ref(out))
        self.operations.append(RecordedOperation(read, (), {}, [self.place(out)], new, [], []))
        return out

    def place(self, x: Tensor) -> StorageView:
        """Where a tensor of the meta device lies."""
        found = self._storages.get(x.untyped_storage()._cdata)
        if found is None:
            raise Unrecordable(f"a tensor of the shape {tuple(x.shape)} is not the result of an operation")
        if x.is_conj() or x.is_neg():
            raise Unrecordable(f"a tensor of the shape {tuple(x.shape)} is a conjugate view")
        return StorageView(found[0], x.dtype, tuple(x.shape), x.stride(), int(x.storage_offset()))

    def others(self, known: Collection[int]) -> list[Tensor]:
        """The results of operations that still exist, besides those in ``known``, by their ids. Call this once."""
        if self._existing(known):
            gc.collect()
        found = self._existing(known)
        self._results = []
        return found

    def _existing(self, known: Collection[int]) -> list[Tensor]:
        found = {id(x): x for x in (one() for one in self._results) if x is not None}
        return [x for key, x in found.items() if key not in known]

    def _number(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = len(self.sizes), storage
            self.sizes.append(storage.nbytes())
        return self._storages[storage._cdata][0]

    def _on_meta(self, x: Tensor) -> Tensor:
        return x if x.is_meta else self.constant(lambda: x)

    def _next_seed(self) -> Tensor | None:
        """The state that was put into the default generator since the last operation that used it."""
        current = torch.default_generator.initial_seed()
        if _MARK <= current < self._mark:
            raise Unrecordable("it sets the random generator back to an earlier state")
        seed = self._seed if current == self._mark else torch.default_generator.get_state()
        self._seed = None
        self._mark += 1
        torch.default_generator.manual_seed(self._mark)
        return seed

    def _advanced(self, generator: torch.Generator, func: Any, args: Any, kwargs: Any) -> GeneratorState:
        """The state of the generator, which then moves on as in the operation."""
        state = generator.get_state()
        args, kwargs = tree_map_only(Tensor, lambda x: torch.empty_like(x, device=CPU), (args, _on_cpu(kwargs)))
        func(*args, **kwargs | {"generator": generator})
        return GeneratorState(state)


class _Appearance(TorchFunctionMode):
    """A tensor of the meta device says that it is on the CPU: some initializations do nothing on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            return False
        if func == Tensor.is_cpu.__get__:  # type: ignore[attr-defined]
            return True
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return CPU
        if func is Tensor.new_tensor:  # on the meta device its numbers would be lost at once
            kwargs["device"] = CPU
        return func(*args, **kwargs)


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors of nested arguments."""
    return [x for x in tree_iter(tree) if isinstance(x, Tensor)]


def _arguments(func: Any) -> set[str]:
    return {argument.name for argument in func._schema.arguments}


def _changed(func: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that an operation changes in place."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number] if number < len(args) else kwargs.get(argument.name)


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return kwargs | {"device": CPU} if "device" in kwargs else kwargs
