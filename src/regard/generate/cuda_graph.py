"""One decoding step as a CUDA graph.

At batch 1 a token is a short read of the weights behind a hundred kernel launches; as a graph it costs one launch.
Compiled first, which takes a minute, the operations between the matrix products are fused too, and a step is several
times faster again. Everything a step reads and writes is at fixed addresses: the token, the logits and the state
(`LanguageModel.start(fixed=True)`). The graph is captured on an empty state, which is reset afterwards.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.attention import ModuleProperties
from regard.attention.slots import EMPTY
from regard.models.base import LanguageModel, State

MIN_TOKENS = 16  # for fewer tokens, capturing a graph takes longer than it saves


def graph_refusal(model: LanguageModel, device: torch.device, tokens: int = MIN_TOKENS) -> str | None:
    """Why decoding ``tokens`` tokens runs without a CUDA graph; None: a step can be captured."""
    if device.type != "cuda":
        return f"CUDA graphs need a CUDA device, and the model is on {device.type}"
    if not model.graphable:
        return f"a step of {type(model).__name__} cannot be captured in a CUDA graph"
    for name, module in model.named_modules():
        if isinstance(module, ModuleProperties) and not module.graphable:
            return f"{name} ({type(module).__name__}) waits for the GPU, so a step cannot be captured in a CUDA graph"
    if tokens < MIN_TOKENS:
        return f"a CUDA graph is captured for {MIN_TOKENS} tokens or more, not {tokens}"
    return None


class GraphedStep:
    """Appends ``token`` [B, 1] and returns ``logits`` [B, V]; with ``choose``, ``token`` then holds the next one.

    ``choose`` maps logits [B, V] to tokens [B] on the device, without synchronizing with the host.
    """

    def __init__(
        self,
        model: LanguageModel,
        state: State,
        choose: Callable[[Tensor], Tensor] | None = None,
        *,
        compiled: bool = True,
    ):
        if state.used or not state.fixed:
            raise ValueError("a graph is captured on an empty state that was started with fixed=True")
        self.token = torch.zeros_like(state.position)[:, None]
        # The host's count of tokens is constant inside the graph, where nothing depends on it.
        inside = state._replace(used=1)

        def step() -> Tensor:
            logits = model.step(self.token, inside)[0][:, -1]
            if choose is not None:
                self.token.copy_(choose(logits)[:, None])
            return logits

        if compiled:
            # Compute what several layers read, above all the angles of rotary positions, once and not in each of them.
            step = torch.compile(step, fullgraph=True, dynamic=False, options={"realize_reads_threshold": 0})
        self._step, self._state = step, state
        self.capture()

    def capture(self) -> None:
        """Capture the graph, and again if a kernel shall run differently; the state is then empty."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(self._graph):
            self.logits = self._step()
        reset_state(self._state)
        self.token.zero_()

    def __call__(self) -> Tensor:
        """One step; returns ``logits``, which the next call overwrites."""
        self._graph.replay()
        return self.logits


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: the destructor of an older graph would invalidate the capture of this one."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def reset_state(state: State) -> None:
    """Make a state empty again, at the same addresses."""
    for part in tree_leaves(state):
        if isinstance(part, Tensor):
            part.zero_()
    for index in state.cache_indices:
        index.segment.fill_(EMPTY)
