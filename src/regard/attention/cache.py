"""Memory: the slots of a key/value cache, and how new tokens land in it.

A cache is more keys with their own slots. Buffers are preallocated and written in place at fixed addresses, with
positions on the device, so that one decoding step can become a CUDA graph. When a mask lets later tokens see only the
first ones and the latest (``Mask.keeps``), the first stay where they are and the rest of the buffer rolls: a place is
overwritten when nothing can see what it holds any more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.mask import Mask
from regard.attention.slots import EMPTY, Slots

SLACK = 16  # how many tokens one later step may bring to a rolling buffer without overwriting what it still sees


class CacheWrite(NamedTuple):
    """Where the tokens of one step go. First step: per slot the token it takes. Later: per token the slot it takes."""

    first: bool
    index: Tensor  # first: [B, S] token per slot; later: [B, T] slot per token
    keep: Tensor | None  # first: [B, S] slots that take one; later: [B, T] tokens that are real, None: all of them

    def write(self, buffer: Tensor, new: Tensor) -> None:
        """``buffer`` [B, G, S, D] takes ``new`` [B, G, T, D], in place."""
        new = new.to(buffer.dtype)  # under autocast the two differ
        keep = None if self.keep is None else self.keep[:, None, :, None]
        if self.first:
            index = self.index[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
            taken = new.gather(2, index)
            buffer.copy_(taken if keep is None else torch.where(keep, taken, buffer))
            return
        # One indexed write: a compiler makes it in place, where for a scatter it would copy the whole buffer.
        batch = torch.arange(new.shape[0], device=new.device)[:, None, None]
        head = torch.arange(new.shape[1], device=new.device)[None, :, None]
        place = (batch, head, self.index[:, None, :])
        buffer.index_put_(place, new if keep is None else torch.where(keep, new, buffer[place]))


class CacheIndex(NamedTuple):
    """The slots of one cache: which order and segment each buffer place holds. Shared by layers with the same mask."""

    order: Tensor  # [B, S]
    segment: Tensor  # [B, S]
    pinned: int = 0  # so many first tokens stay where they are

    @classmethod
    def start(cls, batch: int, capacity: int, mask: Mask, device: torch.device) -> CacheIndex:
        """Room for ``capacity`` tokens, or for those that ``mask`` may still ask for if they are fewer."""
        first, back = mask.keeps()
        size = capacity if back is None else min(capacity, first + back + SLACK)
        order = torch.zeros(batch, size, dtype=torch.long, device=device)
        return cls(order, torch.full_like(order, EMPTY), min(first, size - 1))

    @property
    def size(self) -> int:
        return self.order.shape[1]

    def land(self, position: Tensor, tokens: int, lengths: Tensor | None, first: bool) -> CacheWrite:
        """Take in ``lengths[b]`` of ``tokens`` new tokens (None: all of them) from order ``position[b]`` on.

        Writes the slots, in place.
        """
        ahead = torch.arange(tokens, device=position.device)
        order = position[:, None] + ahead  # [B, T]
        if first:
            slot = torch.arange(self.size, device=position.device)
            last = (torch.full_like(position, tokens) if lengths is None else lengths)[:, None] - 1
            newest = last - (last - slot) % (self.size - self.pinned)  # the newest token that falls into each slot
            there = torch.where(slot < self.pinned, slot <= last, newest >= self.pinned)
            token = torch.where(slot < self.pinned, torch.minimum(slot, last), newest)
            landing = CacheWrite(True, token.clamp(min=0), there)
        else:
            landing = CacheWrite(False, self._slot(order), None if lengths is None else ahead < lengths[:, None])
        landing.write(self.order[:, None, :, None], order[:, None, :, None])
        landing.write(self.segment[:, None, :, None], torch.zeros_like(order)[:, None, :, None])
        return landing

    def _slot(self, order: Tensor) -> Tensor:
        """The place of the token at ``order``."""
        rolled = self.pinned + (order - self.pinned) % (self.size - self.pinned)
        return torch.where(order < self.pinned, order, rolled) if self.pinned else rolled

    def slots(self, used: int) -> Slots:
        """The first ``used`` places, as key slots."""
        order = self.order[:, :used]
        return Slots(order, self.segment[:, :used], order)


class KVCache(NamedTuple):
    """What one layer remembers: its keys and values."""

    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]

    @classmethod
    def start(cls, batch: int, heads: int, size: int, width: int, like: Tensor) -> KVCache:
        shape = (batch, heads, size, width)
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def grown(self, size: int) -> KVCache:
        """A cache for ``size`` tokens with the same content; the places beyond it are uninitialized."""

        def larger(x: Tensor) -> Tensor:
            buffer = x.new_empty(*x.shape[:2], size, x.shape[3])
            buffer[:, :, : x.shape[2]] = x
            return buffer

        return KVCache(larger(self.k), larger(self.v))

    def take(self, landing: CacheWrite, k: Tensor, v: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store new keys and values; give back those to attend to: at first the new ones, later all stored."""
        landing.write(self.k, k)
        landing.write(self.v, v)
        return (k, v) if landing.first else (self.k[:, :, :used], self.v[:, :, :used])


class DecodeInput(NamedTuple):
    """The tokens of one decoding step on their way into what a layer remembers."""

    landing: CacheWrite | None  # where keys and values go; none: behind the others', in every row alike
    used: int  # how many places of the memory hold something, these tokens included

    def remember(self, memory: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, G, T, D]; give back those to attend to."""
        if self.landing is not None:
            return memory.take(self.landing, k, v, self.used)
        place = slice(self.used - k.shape[2], self.used)  # every row holds equally many: a copy will do, not a scatter
        memory.k[:, :, place], memory.v[:, :, place] = k, v
        return memory.k[:, :, : self.used], memory.v[:, :, : self.used]
