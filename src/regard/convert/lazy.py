"""The tensors of a file, each read when it is asked for."""

from collections.abc import Iterator, Mapping

from torch import Tensor


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name. A subclass fills ``_places``, where each of them is, and reads one in ``__getitem__``."""

    _places: Mapping[str, object]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
