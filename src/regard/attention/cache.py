"""The KV cache: its buffers, the slots of its keys, and where the tokens of a step are written.

Buffers are preallocated and written in place at fixed addresses, with positions on the device, so that one decoding
step can become a CUDA graph. If a mask lets later tokens see only the first ones and the latest (``Mask.retention``),
the first are pinned and the rest is a ring buffer: an entry is overwritten when no query can see it any more.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.masks.mask import Mask
from regard.attention.slots import EMPTY, Slots

SLACK = 16  # tokens that one step may write to a ring buffer without overwriting keys that it still sees


class CacheWrite(NamedTuple):
    """Where the tokens of one step are written. First step: the token of each entry. Later: the entry of each token."""

    first: bool
    index: Tensor  # first: [B, S] token per entry; later: [B, T] entry per token
    keep: Tensor | None  # first: [B, S] entries to write; later: [B, T] tokens that are real, None: all of them

    def write(self, buffer: Tensor, new: Tensor) -> None:
        """Write ``new`` [B, G, T, D] to ``buffer`` [B, G, S, D], in place."""
        new = new.to(buffer.dtype)  # under autocast the two differ
        keep = None if self.keep is None else self.keep[:, None, :, None]
        if self.first:
            index = self.index[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
            taken = new.gather(2, index)
            buffer.copy_(taken if keep is None else torch.where(keep, taken, buffer))
            return
        if keep is None and len(new) == 1 and not buffer.is_cuda and not torch.compiler.is_compiling():
            buffer.index_copy_(2, self.index[0], new)  # one operation instead of six
            return
        # One indexed write: a compiler makes it in place, where for a scatter it would copy the whole buffer.
        batch = torch.arange(new.shape[0], device=new.device)[:, None, None]
        head = torch.arange(new.shape[1], device=new.device)[None, :, None]
        place = (batch, head, self.index[:, None, :])
        buffer.index_put_(place, new if keep is None else torch.where(keep, new, buffer[place]))


class CacheIndex(NamedTuple):
    """The order and segment of the token in each cache entry. Shared by layers with the same mask."""

    order: Tensor  # [B, S]
    segment: Tensor  # [B, S]
    pinned: int = 0  # the first tokens, which are never overwritten
    tokens: Tensor | None = None  # [B, capacity + 1], all tokens by order, for masks that follow from them

    @classmethod
    def start(cls, batch: int, capacity: int, mask: Mask, device: torch.device) -> Self:
        """Room for ``capacity`` tokens, or for those that later queries may see under ``mask`` if they are fewer."""
        first, back = mask.retention()
        size = capacity if back is None else min(capacity, first + back + SLACK)
        order = torch.zeros(batch, size, dtype=torch.long, device=device)
        tokens = order.new_zeros(batch, capacity + 1) if mask.needs_tokens else None
        return cls(order, torch.full_like(order, EMPTY), min(first, size - 1), tokens)

    @property
    def size(self) -> int:
        return self.order.shape[1]

    def allocate(self, position: Tensor, tokens: int, lengths: Tensor | None, first: bool) -> CacheWrite:
        """Entries for ``lengths[b]`` of ``tokens`` new tokens (None: all of them) from order ``position[b]`` on.

        Updates the index in place.
        """
        ahead = torch.arange(tokens, device=position.device)
        order = position[:, None] + ahead  # [B, T]
        if first:
            slot = torch.arange(self.size, device=position.device)
            last = (torch.full_like(position, tokens) if lengths is None else lengths)[:, None] - 1
            newest = last - (last - slot) % (self.size - self.pinned)  # the newest token of each entry
            there = torch.where(slot < self.pinned, slot <= last, newest >= self.pinned)
            token = torch.where(slot < self.pinned, torch.minimum(slot, last), newest)
            write = CacheWrite(True, token.clamp(min=0), there)
        else:
            rolled = self.pinned + (order - self.pinned) % (self.size - self.pinned)
            entry = torch.where(order < self.pinned, order, rolled) if self.pinned else rolled
            write = CacheWrite(False, entry, None if lengths is None else ahead < lengths[:, None])
        write.write(self.order[:, None, :, None], order[:, None, :, None])
        write.write(self.segment[:, None, :, None], torch.zeros_like(order)[:, None, :, None])
        return write

    def bind(self, mask: Mask, tokens: Tensor, position: Tensor, lengths: Tensor | None) -> Mask:
        """``mask`` for all tokens so far, the ``tokens`` [B, T] of this step from order ``position[b]`` on included."""
        if self.tokens is None:
            return mask
        ahead = torch.arange(tokens.shape[1], device=tokens.device)
        order = position[:, None] + ahead
        if lengths is not None:  # padding goes to the last column, which no order reaches
            order = torch.where(ahead < lengths[:, None], order, self.tokens.shape[1] - 1)
        self.tokens.scatter_(1, order, tokens)
        return mask.bind(self.tokens)

    def slots(self, used: int) -> Slots:
        """The first ``used`` entries, as key slots."""
        order = self.order[:, :used]
        return Slots(order, self.segment[:, :used], order)


class KVCache(NamedTuple):
    """The cached keys and values of one layer."""

    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]

    @classmethod
    def start(cls, batch: int, heads: int, size: int, width: int, like: Tensor) -> Self:
        shape = (batch, heads, size, width)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def grown(self, size: int) -> Self:
        """A cache for ``size`` tokens with the same content, then zeros."""
        return type(self)(*(F.pad(x, (0, 0, 0, size - x.shape[2])) for x in self))


class DecodeInput(NamedTuple):
    """Where one decoding step stores its keys and values."""

    write: CacheWrite | None  # None: after those of the earlier steps, at the same index in every row
    used: int  # number of filled entries, those of this step included

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, G, T, D]; return those to attend to: in the first step the new ones."""
        if self.write is None:
            new = slice(self.used - k.shape[2], self.used)  # all rows are equally long: a copy instead of a scatter
            cache.k[:, :, new], cache.v[:, :, new] = k, v
        else:
            self.write.write(cache.k, k)
            self.write.write(cache.v, v)
            if self.write.first:
                return k, v
        return cache.k[:, :, : self.used], cache.v[:, :, : self.used]
