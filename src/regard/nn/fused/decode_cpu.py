"""The attention of one token on a CPU in few operations: with one row, their number is the cost.

The rotation of all heads is one product with a matrix that all layers share; where the token sees all keys, the
kernel gets no mask.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import DecodeInput, KVCache, Softmax
from regard.attention.backends.sdpa import KernelMask
from regard.attention.normalizer import SoftmaxNormalizer
from regard.attention.score import Dot
from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.fused.decode_attention import appends_one
from regard.nn.fused.onednn import unmodified
from regard.nn.positions.position import RotaryRotation

ALL_VISIBLE = KernelMask()
_newest: tuple[RotaryRotation | None, Tensor | None] = (None, None)  # the rotation of the latest step and its matrix


def mix_token(attention: SelfAttention, qkv: Tensor, context: AttentionContext) -> Tensor | None:
    """``attention.mix`` for qkv [1, 1, (H + G + G) D] outside autograd; None where this way does not apply."""
    heads, groups, width = attention.heads, attention.kv_heads, attention.head_width
    mechanism, rotation, cache, decode = attention.mechanism, context.rotation, context.cache, context.decode
    if not (
        isinstance(decode, DecodeInput)
        and isinstance(cache, KVCache)
        and isinstance(rotation, RotaryRotation)
        and 2 * rotation.cos.shape[-1] == width
        and context.plan.backend == "sdpa"
        and context.plan.prepared == ALL_VISIBLE
        and type(attention.norm_qk) is nn.Identity
        and _plain(mechanism)
        and appends_one(decode, cache, qkv)
    ):
        return None
    assert isinstance(mechanism, Softmax)
    assert isinstance(mechanism.normalizer, SoftmaxNormalizer)
    rows = qkv.view(heads + 2 * groups, width)
    rotated = torch.mm(rows[: heads + groups], rotation_matrix(rotation, qkv))
    place = decode.write.index.view(1)  # type: ignore[union-attr] (`appends_one`)
    cache.k.index_copy_(2, place, rotated[heads:].view(1, groups, 1, width))
    cache.v.index_copy_(2, place, rows[heads + groups :].view(1, groups, 1, width))
    q = rotated[:heads].view(1, groups, -1, width)  # the heads of a group as its queries
    factor = width**-0.5 if mechanism.scale is None else mechanism.scale
    k, v = cache.k[:, :, : decode.used], cache.v[:, :, : decode.used]
    mixed = F.scaled_dot_product_attention(q, k, v, scale=factor / mechanism.normalizer.temperature)
    return mixed.reshape(1, 1, -1)


def rotation_matrix(rotation: RotaryRotation, like: Tensor) -> Tensor:
    """The matrix R [D, D] with x R = ``rotation.apply(x)`` for the rows of one token; made once per step."""
    global _newest
    known, matrix = _newest
    if known is not rotation or matrix is None or matrix.dtype != like.dtype:
        cos, sin = (part.reshape(-1).to(like.dtype).diag() for part in (rotation.cos, rotation.sin))
        matrix = torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)))
        _newest = rotation, matrix
    return matrix


def _plain(mechanism: nn.Module) -> bool:
    """Whether a mechanism is the softmax of scaled dot products, with a scale above zero."""
    return (
        isinstance(mechanism, Softmax)
        and unmodified(mechanism, Softmax)
        and type(mechanism.score) is Dot
        and mechanism.bias is None
        and type(mechanism.normalizer) is SoftmaxNormalizer
        and mechanism.backend == "auto"
        and (mechanism.scale is None or mechanism.scale > 0)
    )
