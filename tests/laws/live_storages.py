"""Follows the bytes of tensors on the CPU."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.parallel.recording import tensors_in
from regard.parallel.tensors import is_sharded


class LiveStorages(TorchDispatchMode):
    """A context that counts the storages that operations use, each from its first use until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tensors_in((args, kwargs, out)):
            storage = x.untyped_storage()  # that of a DTensor is of its whole size, and nothing is in it
            if x.device.type == "cpu" and not is_sharded(x) and storage not in self._known:
                self._known.add(storage)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, size: int) -> None:
        self.live -= size
