"""What every kind of data is to the code above: a config that builds, and batches by number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from regard.config import Choice


class Data(Protocol):
    """Batches for training and for evaluation."""

    def batch(self, position: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> Any:
        """The batch of step `position`: a pure function of its arguments, on every machine and day."""
        ...

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[Any]:
        """All of the held-out part, every target once over all ranks; equally many batches for each."""
        ...


@runtime_checkable
class DataWithTest(Data, Protocol):
    """Data with a part that is looked at once, at the very end; ask with `isinstance`."""

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[Any]:
        """All of the test part, as `validation_batches` gives the validation part; none if there is no such part."""
        ...


class DataConfig(Choice):
    """The choice of what to train on."""

    batch: int

    def build(self, context: int, cache: Path | None = None) -> Data:
        """Fetch and prepare the data for windows of `context` tokens; what can be kept is kept in `cache`."""
        raise NotImplementedError
