"""Mechanisms with a state of fixed size that reads a text from left to right: state-space models and gated RNNs.

Each channel of a head has its own linear recurrence: its outputs are weighted sums of the values so far:
weights as those of attention, one matrix per channel (Ali et al. 2024, "The hidden attention of Mamba models", eq. 11).
``weights`` are the mean of their sizes over the channels of a head, without the skip D v_t.

    S4D            h_t = Ā h_{t-1} + B̄ v_t,  y_t = Re(C h_t) + D v_t     with constant A, B and C (Gu et al. 2022)
    SelectiveScan  the same with B, C and the step size from the input     (Gu and Dao 2023, algorithm 2)
    GatedMean      h_t = (1 - z_t) h_{t-1} + z_t v_t                       (Feng et al. 2024, sec. 3)

Parameters are vectors: optimizers neither decay nor orthogonalize them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.cache import DecodeInput
from regard.attention.call import Out, Plan, allowed, dense_pairs
from regard.attention.masks.mask import Mask
from regard.attention.masks.patterns import Causal
from regard.attention.mechanism import Mechanism
from regard.attention.mechanisms.scan import linear_scan
from regard.attention.slots import EMPTY, AnySlots, Packed, Padded, Range, Slots
from regard.errors import UserError


class RecurrenceState(NamedTuple):
    """The state of one layer, of constant size: [B, C, ...]."""

    h: Tensor


class Boundaries(NamedTuple):
    """Where documents begin and where slots are empty, for a pass from left to right."""

    keep: Tensor | None  # [B, N], 0 at the first token of a document: it does not see the state before
    real: Tensor | None  # [B, N], False at empty slots

    @classmethod
    def of(cls, slots: AnySlots) -> "Boundaries":
        """None: all are kept, or real."""
        if isinstance(slots, Range):
            return cls(None, None)
        if isinstance(slots, Padded):
            return cls(None, slots.filled())
        real = slots.segment > EMPTY
        if not isinstance(slots, Packed):
            return cls(None, real)
        same = slots.segment[:, 1:] == slots.segment[:, :-1]
        return cls(F.pad(same, (1, 0), value=True), real)


class Recurrence(Mechanism, ABC):
    """Base class. ``heads`` × ``width`` channels, each with a state of ``state`` numbers."""

    recurrent = True

    def __init__(self, heads: int, width: int, state: int = 1):
        super().__init__()
        self.heads, self.width, self.state = heads, width, state
        self.channels = heads * width

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        if type(mask) is not Causal:
            raise UserError(
                f"{type(self).__name__} reads a text from left to right and sees all before, which is not what {mask} "
                "says; use it in a gpt, or --model.attention softmax"
            )
        if keys is None and isinstance(queries, Slots):
            raise UserError(f"{type(self).__name__} reads rows from left to right; give Range, Padded or Packed slots")
        return super().plan(mask, queries, keys, like=like)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        boundaries = Boundaries.of(plan.queries)
        return self._out(self._read(q, k, v, boundaries._replace(real=None), None)[0], boundaries, v)

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, cache: RecurrenceState, decode: DecodeInput) -> Out:
        boundaries = Boundaries.of(plan.queries)
        y, after = self._read(q, k, v, boundaries, cache.h)
        cache.h.copy_(after)
        return self._out(y, boundaries, v)

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> RecurrenceState:
        return RecurrenceState(like.new_zeros(batch, *self.shape, dtype=self.state_type(like.dtype)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the state of a row."""
        return self.state, self.channels

    def state_type(self, dtype: torch.dtype) -> torch.dtype:
        """Of the state, in float32 at least."""
        return torch.promote_types(dtype, torch.float32)

    @abstractmethod
    def over(
        self, q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """v [B, N, C] and what queries and keys hold to outputs [B, N, C] and the last state; None: an empty one."""

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(v.device.type, enabled=False):  # decays near one need float32
            q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
            return self.over(q, k, v.transpose(1, 2).flatten(2), boundaries, before)

    def _empty(self, v: Tensor) -> Tensor:
        return v.new_zeros(v.shape[0], *self.shape, dtype=self.state_type(v.dtype))

    def _out(self, y: Tensor, boundaries: Boundaries, v: Tensor) -> Out:
        """Outputs [B, N, C] as [B, H, N, D], zero at empty slots."""
        if boundaries.real is not None:
            y = y.masked_fill(~boundaries.real[:, :, None], 0)
        return Out(y.to(v.dtype).unflatten(2, (self.heads, self.width)).transpose(1, 2))

    def _seen(self, q: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Which keys each query sees, and how many tokens before it they are: [B or 1, 1, Q, K]."""
        pairs = dense_pairs(plan, q)
        return allowed(plan.mask, pairs), (pairs.q.order - pairs.k.order).clamp(min=0)

    def _mean_weights(self, time: Tensor, plan: Plan, weigh: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The mean over channels d of ``weigh(d, since)``, where since [B, H, Q, K] is the time from key to query.

        ``time`` [B, H, K, D] is that of each token and channel; a query is the key of the same order.
        """
        rows = torch.arange(len(time), device=time.device)[:, None]
        slots = plan.queries
        index = slots.at(rows if slots.rows > 1 else rows * 0, torch.arange(slots.length, device=time.device)).order
        now = time.take_along_dim(index.expand(len(time), -1)[:, None, :, None], 2)  # [B, H, Q, D]
        total = now.new_zeros(())
        for d in range(self.width):
            total = total + weigh(d, (now[..., d, None] - time[:, :, None, :, d]).clamp(min=0))
        return total / self.width


class GatedMean(Recurrence):
    """An exponential moving average of the values, with gates from the token: h_t = (1 - z_t) h_{t-1} + z_t v_t.

    Keys hold -log(1 - z) [B, H, N, D], which is zero or more; queries are not read.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels,)

    def over(
        self, q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        decay = k.transpose(1, 2).flatten(2)
        decay = decay if boundaries.real is None else decay * boundaries.real[:, :, None]
        stay = (-decay).exp()
        stay = stay if boundaries.keep is None else stay * boundaries.keep[:, :, None]
        states = linear_scan(stay, -torch.expm1(-decay) * v, self._empty(v) if before is None else before)
        return states, states[:, -1]

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        """z_j Π (1 - z) over the tokens after j up to i."""
        taken = -torch.expm1(-k)
        mean = self._mean_weights(k.cumsum(2), plan, lambda d, since: (-since).exp() * taken[:, :, None, :, d])
        return mean * self._seen(q, plan)[0]
