"""A mechanism: every visible key has the same weight, so a token gets the mean of the values (He et al. 2023).

regard train --with mechanism.py --model.attention uniform
regard look --with mechanism.py --text "to be or not to be"
"""

from dataclasses import dataclass

from torch import Tensor

from regard.attention import AttentionConfig, LayerSpec, Mechanism, Out, Plan, allowed, dense_pairs, repeat_kv
from regard.errors import UserError


class Uniform(Mechanism):
    """The mean of the visible values. `weights` makes the mechanism visible to `regard look`."""

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        visible = allowed(plan.mask, dense_pairs(plan, q)).expand(q.shape[0], q.shape[1], -1, -1)  # [B, H, Q, K]
        return visible.to(q.dtype) / visible.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        return Out(self.weights(q, k, plan) @ repeat_kv(v, q.shape[1]))


@dataclass(frozen=True)
class UniformConfig(AttentionConfig, kind="uniform"):
    """The mean over all visible tokens."""

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        if spec.bias is not None or spec.dropout:
            raise UserError("uniform attention has no scores: set attention_dropout = 0 and another position")
        return Uniform()
