"""A stack of blocks: it runs them in order, repeats them, and recomputes them in the backward pass on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.nn.cross_attention import CrossAttentionContext

if TYPE_CHECKING:
    from regard.nn.attention import AttentionContext
    from regard.nn.blocks.block import Block


class Stack(nn.ModuleList):
    """Blocks in order of computation. A module list, so that parameters are named ``blocks.0.attention...``."""

    compilable = True  # ``torch.compile`` can trace a training step

    def __init__(self, blocks: Iterable[nn.Module], repeat: int = 1):
        super().__init__(blocks)
        self.repeat = repeat

    @property
    def layers(self) -> list[Block]:
        """The block of each layer: every block ``repeat`` times."""
        return [cast("Block", block) for block in self for _ in range(self.repeat)]

    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end each residual branch, at initialization."""
        for block in self:
            cast("Block", block).scale_residual(scale)

    def forward(
        self,
        x: Tensor,
        contexts: Sequence[AttentionContext],
        caches: Sequence[Any] | None = None,
        cross: Sequence[CrossAttentionContext] | None = None,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """x [B, N, C] through all layers, each with its context and, while decoding, its KV cache.

        ``recompute``: the activations inside a block are not stored, but computed again in the backward pass.
        """
        *_, last = self.outputs(x, contexts, caches, cross, recompute=recompute)
        return last

    def outputs(
        self,
        x: Tensor,
        contexts: Sequence[AttentionContext],
        caches: Sequence[Any] | None = None,
        cross: Sequence[CrossAttentionContext] | None = None,
        *,
        recompute: bool = False,
    ) -> Iterator[Tensor]:
        """The output of each layer in turn; arguments as for ``forward``."""
        layers = self.layers
        given = zip(layers, contexts, caches or [None] * len(layers), cross or [None] * len(layers), strict=True)
        for block, *arguments in given:
            x = checkpoint(block, x, *arguments, use_reentrant=False) if recompute else block(x, *arguments)  # type: ignore
            yield x
