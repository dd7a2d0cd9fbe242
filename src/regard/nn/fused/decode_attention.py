"""The attention of one token on a GPU in two kernels, where rotation and KV cache are the usual ones."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import DecodeInput, KVCache, Softmax
from regard.attention.backends.choose import BACKENDS
from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.fused.onednn import unmodified
from regard.nn.positions.position import RotaryRotation

try:
    from regard.nn.fused.decode_attention_kernel import attend_one as _attend_one
except ImportError:  # CPU builds of PyTorch and macOS come without triton
    _attend_one = None

attend_one: Any = _attend_one


def mix_row(attention: SelfAttention, qkv: Tensor, context: AttentionContext) -> Tensor:
    """``attention.mix`` for one row and one token, by two kernels where they apply."""
    mechanism, plan, rotation, cache, decode = (
        attention.mechanism,
        context.plan,
        context.rotation,
        context.cache,
        context.decode,
    )
    if not (
        attend_one is not None
        and isinstance(mechanism, Softmax)
        and (torch.compiler.is_compiling() or unmodified(mechanism, Softmax))  # a compiler ignores hooks
        and isinstance(attention.norm_qk, nn.Identity)
        and isinstance(rotation, RotaryRotation)
        and 2 * rotation.cos.shape[-1] == attention.head_width
        and isinstance(cache, KVCache)
        and plan.backend == "decode_gpu"
        and appends_one(decode, cache, qkv)
    ):
        return attention.mix(qkv, context)
    assert decode is not None
    assert decode.write is not None
    k, v = (x if x.shape[2] == decode.used else x[:, :, : decode.used] for x in cache)
    q = qkv.view(1, -1, 1, attention.head_width)[:, : attention.heads]
    call = mechanism.call(q, k, v, plan)
    if BACKENDS["decode_gpu"].refuses(call):
        return attention.mix(qkv, context)
    scale = call.factor / call.temperature
    return attend_one(qkv, rotation.cos, rotation.sin, k, v, decode.write.index, plan.prepared, scale)


def appends_one(decode: DecodeInput | None, cache: KVCache, qkv: Tensor) -> bool:
    """Whether a step writes one token of one row, in the type of the cache."""
    if decode is None or decode.write is None or decode.write.first or decode.write.keep is not None:
        return False
    plain = all(x.dtype == qkv.dtype and x.stride(2) == x.shape[3] and x.stride(3) == 1 for x in cache)
    return plain and cache.k.shape[3] == cache.v.shape[3] and decode.write.index.numel() == 1
