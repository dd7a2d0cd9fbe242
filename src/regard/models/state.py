"""The states of decoding models."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from regard.attention import CacheIndex
from regard.errors import UserError


class State(NamedTuple):
    """The decoding state of a language model.

    Every tensor, however deep, has the batch as its first axis and is updated in place, so that one step can become a
    CUDA graph. ``used`` counts on the host.
    """

    position: Tensor  # [B], the number of tokens each row has consumed
    layers: tuple[Any, ...]  # one KV cache, hidden state or ring buffer per layer
    cache_indices: tuple[CacheIndex, ...] = ()  # which token each KV cache place holds, one per distinct attention
    recent: Tensor | None = None  # [B, n], the latest tokens, for models that embed n-grams
    capacity: int | None = None  # the longest row; None: unlimited
    used: int = 0  # tokens consumed by the longest row
    fixed: bool = False  # always attend over whole buffers, so that every step has the same shapes


class Seq2SeqState(NamedTuple):
    """The decoding state of a sequence-to-sequence model: ``batch`` sources with ``beams`` target rows each."""

    shared: Any  # [B, ...], the encoded source: what the beams of a source have in common
    own: Any  # [B * beams, ...], the decoder's own cache, one row per beam
    capacity: int
    used: int = 0


def check_capacity(state: State | Seq2SeqState, count: int) -> None:
    """Refuse more tokens than the state has room for."""
    if state.capacity is not None and state.used + count > state.capacity:
        raise UserError(
            f"the state holds {state.capacity} tokens, {state.used} are there and {count} more were given; "
            "start it with a greater capacity"
        )
