"""The sdpa backend: PyTorch's fused kernels, for every case whose structure they can be told without an N×N mask.

How a plan is told to the kernel:

* nothing to hide                          no mask
* causal over the same tokens              ``is_causal`` (aligned to the upper left: right only for own keys)
* causal, padded on the right              ``is_causal``: padding comes after every real token; its own rows are zeroed
* everybody, keys padded                   a key mask [B,1,1,K]
* packed documents, lengths on the host    one call per document
* anything else                            a dense mask, only while it is small (``DENSE_LIMIT``) or the queries are few
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.call import Call, Out, Plan, allowed
from regard.attention.masks.mask import Causal, Full
from regard.attention.normalizer import SoftmaxNormalizer
from regard.attention.score import Dot
from regard.attention.slots import Packed, Padded, Range, make_pairs
from regard.attention.weigh import repeat_kv

DENSE_LIMIT = 2**22  # elements of a dense mask: 4 MiB as booleans
FEW_QUERIES = 16  # decoding: Q×K is no larger than the keys themselves

# cuDNN first: 1.4-1.7x faster than flash on an H200, and not what the default order picks (docs/design.md).
CUDA_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Telling(NamedTuple):
    """How the plan is told to the kernel. ``seen`` is a boolean mask, ``blank`` the query rows that see nothing."""

    causal: bool = False
    documents: tuple[tuple[int, ...], ...] | None = None
    seen: Tensor | None = None  # [B|1, 1|H, Q|1, K]
    blank: Tensor | None = None  # [B|1, 1|H, Q, 1]


class Sdpa:
    """``torch.nn.functional.scaled_dot_product_attention``, told only what is true."""

    name = "sdpa"

    def refuses(self, call: Call) -> list[str]:
        return [*not_plain_softmax(call), *self._untellable(call.plan, call.q.device)]

    def _untellable(self, plan: Plan, device: torch.device) -> list[str]:
        case = structure(plan)
        if case == "documents" and device.type == "cuda":
            return ["on a GPU one call per document is slow"]
        if case != "other":
            return []
        if isinstance(plan.queries, Padded | Packed) or isinstance(plan.keys, Padded | Packed):
            return ["this mask over padded or packed tokens would need a dense mask for every row"]
        elements = plan.rows * plan.queries.length * plan.keys.length
        if elements > DENSE_LIMIT and plan.queries.length > FEW_QUERIES:
            return [f"this mask would need {elements / 2**20:.0f} MiB of dense mask"]
        return []

    def prepare(self, plan: Plan, device: torch.device) -> Telling:
        case, queries, keys = structure(plan), plan.queries, plan.keys
        if case == "open":
            return Telling()
        if case == "causal":
            return Telling(causal=True)
        if case == "causal padded" and isinstance(queries, Padded):
            return Telling(causal=True, blank=~queries.filled()[:, None, :, None])
        if case == "padded":
            return _key_padding(plan)
        if case == "documents" and isinstance(queries, Packed):
            return Telling(causal=isinstance(plan.mask, Causal), documents=queries.documents)
        seen = allowed(plan.mask, make_pairs(queries, keys, heads=1, device=device, batch=plan.rows))
        blank = ~seen.any(-1, keepdim=True)
        return Telling(seen=seen | blank, blank=blank)

    def run(self, call: Call) -> Out:
        telling: Telling = call.plan.prepared
        q, k, v, width = even_widths(call.q, call.k, call.v)
        if telling.documents is not None:
            values = self._by_document(call, q, k, v, telling.documents, telling.causal)
        else:
            values = fused(call, q, k, v, telling.seen, telling.causal)
        if telling.blank is not None:
            values = values.masked_fill(telling.blank, 0)
        return Out(values[..., :width] if width != values.shape[-1] else values, None)

    def _by_document(
        self,
        call: Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        documents: tuple[tuple[int, ...], ...],
        causal: bool,
    ) -> Tensor:
        """Cut with ``split``, whose backward is one concatenation: cost and memory stay linear in the tokens."""
        rows = []
        for b, lengths in enumerate(documents):
            rest = q.shape[2] - sum(lengths)
            mine = slice(b, b + 1) if len(documents) > 1 else slice(None)  # one row may serve the whole batch
            cuts = [x[mine].split([*lengths, rest], dim=2) for x in (q, k, v)]
            pieces = zip(*cuts, strict=True)
            parts = [fused(call, one, two, three, None, causal) for one, two, three in pieces if one.shape[2]]
            if rest:  # empty slots see nothing
                parts[-1] = parts[-1].masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0)
            rows.append(torch.cat(parts, dim=2))
        return torch.cat(rows)


def structure(plan: Plan) -> str:
    """Which of the cases at the top of this file a plan is, by the kinds of its mask and slots."""
    mask, queries, keys = plan.mask, plan.queries, plan.keys
    full, causal = isinstance(mask, Full), isinstance(mask, Causal) and plan.own
    if isinstance(queries, Range) and isinstance(keys, Range):
        return "open" if full else "causal" if causal else "other"
    if full and isinstance(queries, Range | Padded) and isinstance(keys, Range | Padded):
        return "padded"
    if causal and isinstance(queries, Padded):
        return "causal padded"
    if (full or causal) and plan.own and isinstance(queries, Packed) and queries.documents is not None:
        return "documents"
    return "other"


def _key_padding(plan: Plan) -> Telling:
    seen = blank = None
    if isinstance(plan.keys, Padded):
        seen = plan.keys.filled()[:, None, None, :]  # [B,1,1,K]
        nothing = ~seen.any(-1, keepdim=True)
        seen, blank = seen | nothing, nothing
    if isinstance(plan.queries, Padded):
        empty = ~plan.queries.filled()[:, None, :, None]
        blank = empty if blank is None else blank | empty
    return Telling(seen=seen, blank=blank)


def not_plain_softmax(call: Call, takes_bias: bool = False) -> list[str]:
    """Why PyTorch's fused kernels cannot do this call, whatever its mask; ``takes_bias``: its bias is no reason."""
    reasons = []
    if type(call.score) is not Dot:
        reasons.append(f"scores are {type(call.score).__name__}, not dot products")
    if call.bias is not None and not takes_bias:
        reasons.append(f"a fused kernel cannot apply the bias {type(call.bias).__name__}")
    if not isinstance(call.normalizer, SoftmaxNormalizer):
        reasons.append(call.normalizer.not_fused)
    if call.weights:
        reasons.append("the weights were asked for, and a fused kernel never holds them")
    return reasons


def even_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Fused CPU kernels want one head width: zeros added to the narrower side change no score and no real value."""
    d, e = q.shape[-1], v.shape[-1]
    if d < e:
        q, k = F.pad(q, (0, e - d)), F.pad(k, (0, e - d))
    elif e < d:
        v = F.pad(v, (0, d - e))
    return q, k, v, e


def fused(call: Call, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
    """The kernel, with the call's own scale (padding the width must not change it)."""
    grouped = q.shape[1] != k.shape[1]
    if grouped and not q.is_cuda:  # CPU kernels take no grouped heads
        k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
    scale = call.factor / call.temperature
    if scale <= 0:  # fused kernels bound a row by its greatest product, before they scale
        q, scale = q * scale, 1.0
    kernels = sdpa_kernel(CUDA_ORDER, set_priority=True) if q.is_cuda else nullcontext()
    with kernels:
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=seen,
            dropout_p=call.dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=grouped and q.is_cuda,
        )
