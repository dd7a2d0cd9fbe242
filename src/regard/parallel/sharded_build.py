"""Building a model on several ranks, of which none ever holds the whole model.

The constructor runs on the meta device, where it needs no memory, and is recorded. After the model has been
parallelized and sharded, its operations run again, one tensor at a time; each rank keeps its pieces. The weights have
the same bits as those of one process, which runs the constructor itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import Model
from regard.parallel.pieces import fill as fill_pieces
from regard.parallel.pieces import whole_shape
from regard.parallel.recording import CPU, Recorder, StorageView, Unrecordable
from regard.parallel.replay import OperationReplay

Given = Mapping[str, Tensor]


class InitialValues(NamedTuple):
    """How the tensors of a model on the meta device get their values."""

    recorder: Recorder | None  # None: the model has them already
    places: dict[str, StorageView]  # of parameters and buffers, by name
    others: list[tuple[Tensor, StorageView]]  # tensors that are neither, such as those of a mask
    reason: str = ""  # why the constructor could not be recorded


def recorded(
    build: Callable[[Given | None], Model], given: Given | None = None, *, say: bool = False
) -> tuple[Model, InitialValues]:
    """The model that ``build(given)`` makes, on the meta device; ``fill`` gives its values.

    ``given`` are tensors to start from, each of which is read when it is used. What depends on the values of tensors,
    such as the quantized matrices under adapters (QLoRA), cannot be recorded: then the model is built as in one
    process, which needs memory for all of it; ``say``: with a line on stderr.
    """
    recorder = Recorder()
    try:
        with recorder:
            model = build(None if given is None else _Later(given, recorder))
        return model, _initial(model, recorder)
    except UserError:
        raise
    except Exception as problem:
        reason = str(problem).partition("\n")[0]
    if say:
        text = (
            f"regard: each rank builds the whole model before it keeps its shards, as it cannot be recorded ({reason})"
        )
        print(text, file=sys.stderr, flush=True)
    return build(given), InitialValues(None, {}, [], reason)


def _initial(model: Model, recorder: Recorder) -> InitialValues:
    tensors = named_tensors(model)
    known = {id(x) for x in tensors.values()}
    if real := [name for name, x in model.named_parameters() if not x.is_meta]:
        raise Unrecordable(f"{real[0]} was not made by the constructor")
    places = {name: recorder.place(x) for name, x in tensors.items() if x.is_meta}
    others = [(x, recorder.place(x)) for x in recorder.others(known)]
    storages = {place.storage for place in places.values()}
    if any(place.storage in storages for _, place in others):
        raise Unrecordable("it keeps a view of a parameter or buffer")
    return InitialValues(recorder, places, others)


def fill(model: Model, initial: InitialValues, device: torch.device) -> None:
    """Move the model from the meta device to ``device``, with its initial values; each rank gets its shards."""
    if initial.recorder is None:
        model.to(device)
        return
    into = {name: x for name, x in named_tensors(model, once=True).items() if x.is_meta}
    for name, x in into.items():
        place = initial.places.get(name)
        if place is None or place.shape != whole_shape(x, model.cuts.get(name)):
            raise RuntimeError(f"{name} is not as the constructor made it, and has no cut in Model.cuts")
    _allocate(model, device)
    into |= {name: x for name, x in named_tensors(model).items() if name in into}  # buffers are other objects now
    wanted = {name: initial.places[name] for name in into}
    for number, (x, place) in enumerate(initial.others):
        torch.utils.swap_tensors(x, torch.empty_like(x, device=CPU))
        into[f"other {number}"], wanted[f"other {number}"] = x, place
    OperationReplay(initial.recorder.operations, initial.recorder.sizes, wanted).run(
        lambda name, whole: fill_pieces(into[name], whole, model.cuts.get(name))
    )


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Memory for every tensor of the model, without values. Tied tensors stay tied, which ``to_empty`` would undo."""
    made = dict[int, tuple[Tensor, Tensor]]()  # the first of them is kept, so that no id is used twice

    def real(x: Tensor) -> Tensor:
        if not x.is_meta:
            return x.to(device)
        return made.setdefault(id(x), (x, torch.empty_like(x, device=device)))[1]

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the same objects
    try:
        model._apply(real)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def named_tensors(model: nn.Module, *, once: bool = False) -> dict[str, Tensor]:
    """Parameters and buffers under all their names, or under one each."""
    return dict((*model.named_parameters(remove_duplicate=once), *model.named_buffers(remove_duplicate=once)))


class _Later(Mapping[str, Tensor]):
    """Tensors that are read again, one at a time, when a recording is replayed."""

    def __init__(self, given: Given, recorder: Recorder):
        self._given, self._recorder = given, recorder
        self._found: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._found:
            self._found[name] = self._recorder.constant(lambda: self._given[name])
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)
