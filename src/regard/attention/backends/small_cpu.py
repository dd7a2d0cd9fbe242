"""The small_cpu backend: plain batched products for few tokens on a CPU.

Up to about a hundred tokens, the fused CPU kernel spends more time on its blocks than on arithmetic. Here every score
is stored, and the backward pass is written out.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.attention.backends.sdpa import Structure, not_plain_softmax, structure
from regard.attention.call import Backend, Call, Out, Plan, SavedTensors, applying, in_one_type, repeat_kv
from regard.attention.slots import Padded

SUPPORTED = (Structure.FULL, Structure.CAUSAL, Structure.CAUSAL_PADDED)
LONGEST = 128  # tokens; measured on two AVX-512 cores: 1.4x the fused kernel at 64, even at about 256


class SmallCPU(Backend):
    """Softmax over a small square of scores."""

    name = "small_cpu"

    def refuses(self, call: Call) -> list[str]:
        if torch.compiler.is_compiling():  # before any length is read, which would become a guard in the graph
            return ["under a compiler the fused kernel is faster"]
        plan = call.plan
        reasons = {
            "it is for CPUs": call.q.device.type != "cpu",
            f"it is for up to {LONGEST} tokens": max(plan.queries.length, plan.keys.length) > LONGEST,
            "it supports causal and full masks over plain or right-padded tokens": structure(plan) not in SUPPORTED,
            "it has no dropout": call.dropout > 0,
        }
        return not_plain_softmax(call) + applying(reasons)

    def prepare(self, plan: Plan, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """The float mask [N, N] that is added to the scores, and the queries that see nothing [B, 1, N, 1]."""
        if structure(plan) is Structure.FULL:
            return None, None
        length = plan.queries.length
        offset = torch.full((length, length), float("-inf"), device=device).triu(1)
        blank = ~plan.queries.filled()[:, None, :, None] if isinstance(plan.queries, Padded) else None
        return offset, blank

    def run(self, call: Call) -> Out:
        offset, blank = call.plan.prepared
        q, k, v = in_one_type(call.q, call.k, call.v)
        k, v = (repeat_kv(x, q.shape[1]) for x in (k, v))
        values = _Attention.apply(q, k, v, offset, call.factor / call.temperature)
        return Out(values if blank is None else values.masked_fill(blank, 0))


class _Context(SavedTensors):
    scale: float


class _Attention(Function):
    @staticmethod
    def forward(ctx: _Context, q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float) -> Tensor:
        batch, heads = q.shape[:2]
        q, k, v = (x.reshape(batch * heads, *x.shape[2:]) for x in (q, k, v))  # [BH, N, D]
        offset = q.new_zeros(1, 1) if offset is None else offset.to(q.dtype)
        weights = torch.baddbmm(offset, q, k.transpose(1, 2), alpha=scale).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale = scale
        values = torch.bmm(weights, v)
        return values.view(batch, heads, *values.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        scale, lead = ctx.scale, grad.shape[:2]
        grad = grad.reshape(v.shape[0], q.shape[1], v.shape[2])
        for_q, for_k, for_v = (torch.empty_like(x) for x in (q, k, v))
        torch.bmm(weights.transpose(1, 2), grad, out=for_v)
        # d softmax: w·(g - Σ w·g), as one fused kernel
        for_weights = torch.bmm(grad, v.transpose(1, 2))
        for_scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
        torch.baddbmm(for_q, for_scores, k, beta=0, alpha=scale, out=for_q)  # with beta 0 the input is not read
        torch.baddbmm(for_k, for_scores.transpose(1, 2), q, beta=0, alpha=scale, out=for_k)
        return *(x.view(*lead, *x.shape[1:]) for x in (for_q, for_k, for_v)), None, None
