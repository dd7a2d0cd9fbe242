"""The sdpa backend: PyTorch's fused kernels, for every case whose structure needs no N×N mask.

How each structure of a plan is passed to the kernel:

* ``FULL``            no mask
* ``CAUSAL``          ``is_causal`` (aligned to the upper left: correct only if queries and keys are the same tokens)
* ``CAUSAL_PADDED``   ``is_causal``: padding comes after every real token; its own rows are set to zero
* ``PADDED``          a key mask [B,1,1,K]
* ``DOCUMENTS``       packed documents with lengths known to the host: one call per document
* ``OTHER``           a dense mask, only while it is small (``DENSE_LIMIT``) or there are few queries
"""

from contextlib import nullcontext
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.call import Backend, Call, Out, Plan, allowed, applying, repeat_kv
from regard.attention.masks.mask import Full
from regard.attention.masks.patterns import Causal
from regard.attention.normalizer import SoftmaxNormalizer
from regard.attention.score import Dot
from regard.attention.slots import Packed, Padded, Range, make_pairs

DENSE_LIMIT = 2**22  # elements of a dense mask: 4 MiB as booleans
FEW_QUERIES = 16  # decoding: Q×K is no larger than the keys themselves

# cuDNN first: 1.4-1.7x faster than flash on an H200, and not what the default order picks (docs/decisions.md).
CUDA_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Structure(Enum):
    """The structures of a plan that fused kernels distinguish."""

    FULL = auto()
    CAUSAL = auto()
    CAUSAL_PADDED = auto()
    PADDED = auto()
    DOCUMENTS = auto()
    OTHER = auto()


class KernelMask(NamedTuple):
    """The mask arguments of the kernel."""

    causal: bool = False
    documents: tuple[tuple[int, ...], ...] | None = None
    visible: Tensor | None = None  # [B|1, 1|H, Q|1, K]
    blank: Tensor | None = None  # [B|1, 1|H, Q, 1], queries that see nothing: their outputs are set to zero


class Sdpa(Backend):
    """``torch.nn.functional.scaled_dot_product_attention``."""

    name = "sdpa"

    def refuses(self, call: Call) -> list[str]:
        reasons, plan, case = not_plain_softmax(call), call.plan, structure(call.plan)
        if case is Structure.DOCUMENTS and call.q.device.type == "cuda":
            reasons.append("on a GPU one call per document is slow")
        if case is not Structure.OTHER:
            return reasons
        if isinstance(plan.queries, Padded | Packed) or isinstance(plan.keys, Padded | Packed):
            return [*reasons, "this mask over padded or packed tokens would need a dense mask for every row"]
        elements = plan.mask_count * plan.queries.length * plan.keys.length
        if elements > DENSE_LIMIT and plan.queries.length > FEW_QUERIES:
            reasons.append(f"this mask would need {elements / 2**20:.0f} MiB of dense mask")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> KernelMask:
        case, queries, keys = structure(plan), plan.queries, plan.keys
        causal = isinstance(plan.mask, Causal) and case is not Structure.OTHER
        if case is Structure.DOCUMENTS and isinstance(queries, Packed):
            return KernelMask(causal, queries.documents)
        visible = blank = None
        if case is Structure.OTHER:
            pairs = make_pairs(queries, keys, heads=plan.mask.distinct_heads, device=device, batch=plan.rows)
            visible = allowed(plan.mask, pairs)
            if plain_step(plan, device) and visible.all():  # decoding, usually: a call without a mask is faster
                return KernelMask()
        elif case is Structure.PADDED and isinstance(keys, Padded):
            visible = keys.filled()[:, None, None, :]
        if visible is not None:
            blank = ~visible.any(-1, keepdim=True)
            visible = visible | blank
        if case in (Structure.PADDED, Structure.CAUSAL_PADDED) and isinstance(queries, Padded):
            empty = ~queries.filled()[:, None, :, None]
            blank = empty if blank is None else blank | empty
        return KernelMask(causal, None, visible, blank)

    def run(self, call: Call) -> Out:
        mask: KernelMask = call.plan.prepared
        q, k, v, width = even_widths(call.q, call.k, call.v)
        if mask.documents is not None:
            values = _by_document(call, q, k, v, mask.documents)
        else:
            values = fused(call, q, k, v, mask.visible, mask.causal)
        if mask.blank is not None:
            values = values.masked_fill(mask.blank, 0)
        return Out(values[..., :width] if width != values.shape[-1] else values)


def plain_step(plan: Plan, device: torch.device) -> bool:
    """Whether this is one query on a CPU, where looking at a mask costs less than using it."""
    return device.type == "cpu" and not torch.compiler.is_compiling() and plan.queries.length == 1


def _by_document(call: Call, q: Tensor, k: Tensor, v: Tensor, documents: tuple[tuple[int, ...], ...]) -> Tensor:
    """Cut with ``split``, whose backward is one concatenation: cost and memory stay linear in the tokens."""
    rows = []
    for b, lengths in enumerate(documents):
        rest = q.shape[2] - sum(lengths)
        row = slice(b, b + 1) if len(documents) > 1 else slice(None)  # one row may serve the whole batch
        pieces = zip(*(x[row].split([*lengths, rest], dim=2) for x in (q, k, v)), strict=True)
        parts = [fused(call, *qkv, visible=None, causal=call.plan.prepared.causal) for qkv in pieces if qkv[0].shape[2]]
        if rest:  # empty slots see nothing
            parts[-1] = parts[-1].masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0)
        rows.append(torch.cat(parts, dim=2))
    return torch.cat(rows)


def structure(plan: Plan) -> Structure:
    """The structure of a plan, by the kinds of its mask and slots."""
    mask, queries, keys = plan.mask, plan.queries, plan.keys
    full, causal = isinstance(mask, Full), isinstance(mask, Causal) and plan.same_tokens
    if isinstance(queries, Range) and isinstance(keys, Range):
        return Structure.FULL if full else Structure.CAUSAL if causal else Structure.OTHER
    if full and isinstance(queries, Range | Padded) and isinstance(keys, Range | Padded):
        return Structure.PADDED
    if causal and isinstance(queries, Padded):
        return Structure.CAUSAL_PADDED
    if (full or causal) and plan.same_tokens and isinstance(queries, Packed) and queries.documents is not None:
        return Structure.DOCUMENTS
    return Structure.OTHER


def not_plain_softmax(call: Call, takes_bias: bool = False) -> list[str]:
    """Why PyTorch's fused kernels cannot compute this call, apart from its mask; ``takes_bias``: any bias is fine."""
    biased = call.bias is not None and not takes_bias
    reasons = {
        f"scores are {type(call.score).__name__}, not dot products": type(call.score) is not Dot,
        f"a fused kernel cannot apply the bias {type(call.bias).__name__}": biased,
        call.normalizer.not_fused: not isinstance(call.normalizer, SoftmaxNormalizer),
        "the weights were asked for, and a fused kernel never stores them": call.weights,
    }
    return applying(reasons)


def even_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Fused CPU kernels need one head width: zeros added to the narrower side change no score and no value."""
    d, e = q.shape[-1], v.shape[-1]
    if d < e:
        q, k = F.pad(q, (0, e - d)), F.pad(k, (0, e - d))
    elif e < d:
        v = F.pad(v, (0, d - e))
    return q, k, v, e


def fused(call: Call, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool) -> Tensor:
    """The kernel, with the scale of the call, which padding the width does not change."""
    grouped, shape = q.shape[1] != k.shape[1], q.shape
    if grouped and not q.is_cuda:  # CPU kernels take no grouped heads
        if q.shape[2] == 1 and not causal and (visible is None or visible.shape[1] == 1):
            q = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])  # in decoding: a group's heads as its queries
        else:
            k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
    scale = call.factor / call.temperature
    if scale <= 0:  # fused kernels bound a row by its greatest product, before they scale
        q, scale = q * scale, 1.0
    kernels = sdpa_kernel(CUDA_ORDER, set_priority=True) if q.is_cuda else nullcontext()
    with kernels:
        values = F.scaled_dot_product_attention(
            q, k, v, visible, call.dropout, causal, scale=scale, enable_gqa=grouped and q.is_cuda
        )
    return values if q.shape[:3] == shape[:3] else values.reshape(*shape[:3], -1)
