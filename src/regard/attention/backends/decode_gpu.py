"""The decode_gpu backend: one query per row on a GPU, as in decoding.

PyTorch's fused kernels are made for many queries; with one they leave most of a GPU idle.
"""

import torch
from torch import Tensor

from regard.attention.backends.sdpa import Structure, not_plain_softmax, structure
from regard.attention.call import Backend, Call, Out, Plan, allowed, applying
from regard.attention.slots import make_pairs

try:
    from regard.attention.backends.decode_gpu_kernel import mix_one
except ImportError:  # CPU builds of PyTorch and macOS come without triton
    mix_one = None

WIDEST = 256
LONGEST = 8192  # keys; beyond, one program per head is too few


class DecodeGPU(Backend):
    """Softmax over the keys for one query."""

    name = "decode_gpu"

    def refuses(self, call: Call) -> list[str]:
        if call.q.device.type != "cuda":  # before any length is read, which would become a guard in a graph
            return ["it is for GPUs"]
        if mix_one is None:
            return ["it needs triton"]
        tensors, made = (call.q, call.k, call.v), call.q.ndim == 4  # the call of a plan has no heads yet
        reasons = {
            "it is for one query per row": call.plan.queries.length != 1,
            f"it is for heads up to {WIDEST} wide": made and max(call.q.shape[-1], call.v.shape[-1]) > WIDEST,
            f"it is for up to {LONGEST} keys": call.plan.keys.length > LONGEST,
            "it has one mask for all heads": call.plan.mask.distinct_heads > 1,
            "it has no backward pass": any(x.requires_grad for x in tensors),
            "it has no dropout": call.dropout > 0,
            "it sums in float32": call.q.dtype == torch.float64,
        }
        return not_plain_softmax(call) + applying(reasons)

    def prepare(self, plan: Plan, device: torch.device) -> Tensor | None:
        """The visible keys, [B|1, K]; None: all."""
        if structure(plan) is Structure.FULL:
            return None
        pairs = make_pairs(plan.queries, plan.keys, heads=1, device=device, batch=plan.rows)
        return allowed(plan.mask, pairs)[:, 0, 0].contiguous()

    def run(self, call: Call) -> Out:
        assert mix_one is not None  # or the call would have been refused
        return Out(mix_one(call.q, call.k, call.v, call.plan.prepared, call.factor / call.temperature))
