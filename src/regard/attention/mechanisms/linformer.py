"""Linformer: keys and values are projected along the sequence to a few summaries (Wang et al. 2020, eq. 7).

softmax(q (E k)ᵀ·scale) (F v) with E and F of k rows and as many columns as the longest text: linear in its length. A
column belongs to a position, so that a shorter text uses the first columns; and since n tokens have at most n
independent summaries, it uses the first n rows only. With E = F = 1 that is exact attention, at every length.

Not for causal models: each summary is a sum over all positions, the future included.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.attention.call import Out, Plan
from regard.attention.masks.mask import Full, Mask
from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism, Softmax
from regard.attention.slots import AnySlots, Packed, Padded, Range
from regard.config import option
from regard.errors import UserError

Share = Literal["nothing", "heads", "all"]


class Linformer(Mechanism):
    """Exact attention over ``summaries`` learned sums of the keys and of the values.

    ``share``: "nothing" gives each key/value head its own projections, "heads" one for the keys and one for the
    values of all heads, "all" one for everything (the paper's headwise and key-value sharing, sec. 4).
    """

    steppable = False  # a new token changes every summary

    def __init__(
        self,
        kv_heads: int,
        context: int,
        summaries: int,
        share: Share = "heads",
        *,
        dropout: float = 0.0,
        backend: str = "auto",
    ):
        super().__init__()
        self.context, self.summaries = context, min(summaries, context)
        heads = kv_heads if share == "nothing" else 1
        #: E and F, or the one that is both: [heads, summaries, context] each.
        self.projections = nn.Parameter(torch.empty(1 if share == "all" else 2, heads, self.summaries, context))
        self.softmax = Softmax(dropout=dropout, backend=backend)
        self.reset()

    def reset(self) -> None:
        """The variance of a summary of a full text is that of one key, and so is that of the scores."""
        nn.init.normal_(self.projections, std=self.context**-0.5)

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        plan = super().plan(mask, queries, keys, like=like)
        queries, keys = plan.queries, plan.keys
        if mask.reach().ahead == 0:
            raise UserError(
                "linformer cannot be causal, because its projection over positions mixes the future into every "
                "summary; choose another attention (linear, performer, window, lsh), or softmax"
            )
        if not isinstance(mask, Full):
            raise UserError(
                f"linformer cannot hide single tokens as {mask} does, because every summary contains all of them; "
                "choose another attention"
            )
        if not isinstance(queries, Range | Padded) or not isinstance(keys, Range | Padded):
            what = "several documents in one row" if isinstance(keys, Packed) else "slots in any order"
            raise UserError(f"linformer projects over positions, which {what} do not have; give padded rows")
        if last(keys) > self.context:
            raise UserError(
                f"linformer's projections end at position {self.context}, and the text at {last(keys)}; "
                "use fewer tokens or a model with a longer context"
            )
        few = min(self.summaries, keys.length)
        slots = Range(few) if isinstance(keys, Range) else Padded(keys.lengths.clamp(max=few), few)
        return plan._replace(backend="linformer", prepared=self.softmax.plan(mask, queries, slots, like=like))

    @property
    def unobservable(self) -> str:
        return "Linformer weighs learned summaries of the keys, not each key"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        inner: Plan = plan.prepared
        keys = plan.keys
        if isinstance(keys, Padded):
            empty = ~keys.filled()[:, None, :, None]
            k, v = k.masked_fill(empty, 0), v.masked_fill(empty, 0)
        columns = slice(last(keys) - keys.length, last(keys))
        projections = self.projections[:, :, : inner.keys.length, columns].to(k.dtype)  # [1|2, 1|G, k, n]
        return self.softmax(q, projections[0] @ k, projections[-1] @ v, inner)


def last(slots: AnySlots) -> int:
    """The end of the positions (exclusive)."""
    return slots.length + (slots.start if isinstance(slots, Range) else 0)


@dataclass(frozen=True)
class LinformerConfig(AttentionConfig, kind="linformer"):
    """Attention over learned summaries of the whole text; not for causal models."""

    k: int = option(64, "number of summaries of a text", least=1)
    share: Share = option("heads", "shared projections: nothing, heads (keys and values differ), all")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        if spec.bias is not None:
            raise UserError(
                "linformer cannot take a bias of positions, because a summary has no position; "
                "choose another position (rotary, learned, sinusoidal)"
            )
        made = (spec.kv_heads, spec.context, self.k, self.share)
        return Linformer(*made, dropout=spec.dropout, backend=spec.backend)
