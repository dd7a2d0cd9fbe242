"""One decoding step as a CUDA graph: at batch 1 a token is a short read of the weights behind a hundred launches.

Captured, a token costs one launch. Compiled before, what stands between the products is fused too, which takes a minute
and makes it several times faster again. Everything a step reads and writes lies at fixed addresses
(`GPT.start(fixed=True)`): the state, the token, the logits, and whatever the choice of a token keeps. Capturing takes
place on an empty state, which is emptied again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention import CacheIndex
from regard.attention.slots import EMPTY

Choose = Callable[[Tensor], Tensor]  # logits [B, V] -> tokens [B], on the device, with nothing for the host to know

#: What several layers read, the angles of rotary positions above all, is worked out once and not in each of them.
TUNING: dict[str, Any] = {"realize_reads_threshold": 0}


class GraphedStep:
    """Takes in ``token`` [B, 1] and gives ``logits`` [B, V]; with ``choose``, ``token`` then is the next one."""

    def __init__(self, model: Any, state: Any, choose: Choose | None = None, *, compiled: bool = True):
        if state.used or not state.fixed:
            raise ValueError("a graph is captured on an empty state that was started with fixed=True")
        self.token = torch.zeros_like(state.position)[:, None]
        # The host's count of tokens is frozen inside the graph, where nothing depends on it.
        inside = state._replace(used=1)

        def step() -> Tensor:
            logits = model.step(self.token, inside)[0][:, -1]
            if choose is not None:
                self.token.copy_(choose(logits)[:, None])
            return logits

        if compiled:
            step = torch.compile(step, fullgraph=True, dynamic=False, options=TUNING)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.logits = step()
        empty(state)
        self.token.zero_()

    def __call__(self) -> Tensor:
        """One step; gives ``logits``, which the next call overwrites."""
        self._graph.replay()
        return self.logits


def empty(state: Any) -> None:
    """Make a state as it was when it was started, at the same addresses."""
    if isinstance(state, Tensor):
        state.zero_()
    elif isinstance(state, tuple):
        for part in state:
            empty(part)
    if isinstance(state, CacheIndex):
        state.segment.fill_(EMPTY)
