"""How shards of keys and values reach the queries of another rank. The process group's own is in ``parallel/``."""

from collections.abc import Callable

from torch import Tensor

Wait = Callable[[], None]  # returns when what was sent and received may be used


class Transport:
    """One process, which holds all tokens: nothing travels. Others are subclasses."""

    rank: int = 0
    size: int = 1  # ranks that share the tokens of each row

    def __init__(self) -> None:
        self.messages = 0  # that this rank has sent
        self.bytes = 0

    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensor of each rank; all have the same shape. Every rank calls it."""
        return [x]

    def exchange(self, sent: Tensor | None, to: int, received: Tensor | None, source: int) -> Wait:
        """Start to send a tensor to rank ``to`` and to fill another one from rank ``source``; None: nothing.

        All ranks call it in the same order. Both tensors are left alone until the result has been called.
        """
        self.messages += sent is not None
        self.bytes += 0 if sent is None else sent.nbytes
        return self._exchange(sent, to, received, source)

    def _exchange(self, sent: Tensor | None, to: int, received: Tensor | None, source: int) -> Wait:
        raise NotImplementedError
