"""A mixture of experts: many feed-forward networks, of which each token goes through a few (Shazeer et al. 2017).

The matrices of all experts are stacked in one weight, so that an optimizer, a checkpoint or FSDP handles a few large
matrices; ``parts`` gives the rows of each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import ModuleProperties
from regard.config import option
from regard.nn.auxiliary_loss import AuxiliaryLoss, AuxiliaryLossLayer
from regard.nn.experts.grouped import collect, dispatch, grouped, has_kernel
from regard.nn.experts.routing import Route, balance_loss, order, route, share, z_loss
from regard.nn.feedforward import ACTIVATIONS, FeedForwardConfig, FeedForwardLayer, hidden_width
from regard.nn.linear import Linear

ExpertWeights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # up [E, O, C], down [E, C, H], and their biases


@dataclass(frozen=True)
class MoEConfig(FeedForwardConfig, kind="moe"):
    """A mixture of experts: each token is routed to a few of many networks.

    Mixtral (Jiang et al. 2024) is the default with ratio 3.5; the Switch Transformer (Fedus et al. 2022) has active 1,
    activation relu and a capacity of 1.25; DeepSeekMoE (Dai et al. 2024) has shared experts.
    """

    ratio: float = option(4 / 3, "hidden width of each expert over the model's width")
    experts: int = option(8, "number of networks that the router chooses from")
    active: int = option(2, "experts per token")
    shared: int = option(0, "additional experts that every token uses")
    activation: Literal[
        "relu", "gelu", "gelu_tanh", "relu2", "swiglu", "geglu", "geglu_tanh", "reglu", "glu", "bilinear"
    ] = option("swiglu", "kind of feed-forward network of the experts")
    normalise: bool | None = option(
        None, "normalize the gates of a token to sum 1 (none: if more than one expert is active)"
    )
    capacity: float | None = option(
        None,
        "in training an expert takes at most so many times its even share, and drops the rest (none: no limit)",
        above=0,
    )
    balance: float = option(0.01, "factor of the loss that spreads tokens over the experts (0: off)")
    z: float = option(0.001, "factor of the loss that keeps the router's logits small (0: off)")

    def check(self) -> None:
        super().check()
        if self.experts < 1 or self.shared < 0:
            raise ValueError(f"a mixture needs at least one expert, not {self.experts} and {self.shared} shared ones")
        if not 1 <= self.active <= self.experts:
            raise ValueError(f"active must be from 1 to the number of experts, {self.experts}, not {self.active}")
        if self.normalise and self.active == 1 < self.experts:
            raise ValueError(
                "a single normalized gate is always 1 and gives the router no gradient; leave out normalise"
            )
        for name in ("balance", "z"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")

    def hidden(self, width: int) -> int:
        return hidden_width(self.ratio, width, ACTIVATIONS[self.activation][1])

    def build(self, width: int, *, bias: bool) -> FeedForwardLayer:
        kind = MixtureOfExperts if self.capacity is None else CapacityExperts
        return kind(width, self, bias=bias)


class Exchange:
    """Brings rows to their experts and back. Here all of them are on this rank; expert parallelism sets another one."""

    graphable = True  # the host does not wait for the device

    def __call__(self, rows: Tensor, ends: Tensor, networks: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The outputs of rows [R, C], sorted by expert, of which those of expert e end at ends[e]."""
        return networks(rows, ends)

    def shared(self, weight: Tensor) -> Tensor:
        """Weights that every rank has, for rows of its own."""
        return weight


class MixtureOfExperts(AuxiliaryLossLayer, FeedForwardLayer, ModuleProperties):
    """Σ over the chosen experts of gate · expert(x), plus all shared experts of x. No token is dropped.

    In training it records its balance and z losses, and for each expert its share of the tokens and its mean
    probability. Padding tokens are routed and counted like others.
    """

    discontinuous = True  # rounding may route a token to another expert

    @property
    def graphable(self) -> bool:
        """Whether PyTorch has a grouped kernel for it; without one the host reads how many tokens each expert gets."""
        (up, down, *_), _ = self._weights(self.down.weight.dtype)
        return self.exchange.graphable and has_kernel(up, up) and has_kernel(down, down)

    def __init__(self, width: int, config: MoEConfig, *, bias: bool = False):
        super().__init__()
        config.check()
        self.config, self.width = config, width
        self.activation, self.gated = ACTIVATIONS[config.activation]
        self.hidden = config.hidden(width)
        self.drop = nn.Dropout(config.dropout)
        count, rows = config.experts + config.shared, self.hidden * (2 if self.gated else 1)
        self.normalise = config.active > 1 if config.normalise is None else config.normalise
        self.router = Linear(width, config.experts, bias=False)
        up = Linear(width, *[rows] * count, bias=bias)
        self.add_module("gate_up" if self.gated else "up", up)  # the names of a dense network
        self.down = Linear(self.hidden, *[width] * count, bias=bias)
        self.exchange = Exchange()

    @property
    def inactive_parameters(self) -> int:  # type: ignore[override]
        """Matrix weights that one token does not use."""
        matrices = sum(layer.weight.numel() // len(layer.parts) for layer in (self._up, self.down))
        return matrices * (self.config.experts - self.config.active)

    @property
    def _up(self) -> Linear:
        return self.get_submodule("gate_up" if self.gated else "up")  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)  # [T, C]
        logits = self._logits(rows)
        chosen = route(logits, self.config.active, self.normalise)
        if torch.is_autocast_enabled(x.device.type):  # grouped products ignore autocast
            rows = rows.to(torch.get_autocast_dtype(x.device.type))
        routed, always = self._weights(rows.dtype)
        out, dropped = self._mix(rows, chosen, routed)
        for weights in always:
            out = out + self._networks(rows, None, weights)
        if self.training:
            self._record_losses(logits, chosen, dropped)
        return out.view(x.shape)

    def _logits(self, rows: Tensor) -> Tensor:
        """The router's logits, at least in float32: rounding may change the choice (Fedus et al. 2022, sec. 2.4)."""
        wide = torch.promote_types(self.router.weight.dtype, torch.float32)
        with torch.autocast(rows.device.type, enabled=False):
            return F.linear(rows.to(wide), self.router.weight.to(wide))

    def _weights(self, dtype: torch.dtype) -> tuple[ExpertWeights, list[ExpertWeights]]:
        """Up, down and their biases: stacked for the routed experts, and for each shared expert as a stack of one."""
        count, stacks = self.config.shared, []
        for tensor in (self._up.weight, self.down.weight, self._up.bias, self.down.bias):
            stacks.append(None if tensor is None else tensor.to(dtype).unflatten(0, (len(self.down.parts), -1)))
        if not count:  # a split copies all gradients
            return tuple(stacks), []
        routed, shared = [], []
        for stack in stacks:
            here, every = (None, None) if stack is None else stack.split([len(stack) - count, count])
            routed.append(here)
            shared.append([None] * count if every is None else self.exchange.shared(every).split(1))
        return tuple(routed), list(zip(*shared, strict=True))

    def _activate(self, hidden: Tensor) -> Tensor:
        """The activation between the two products of an expert, and dropout.

        On a GPU, autocast computes a square in float32; grouped products ignore autocast, so the format stays.
        """
        if not self.gated:
            return self.drop(self.activation(hidden).to(hidden.dtype))
        gate, up = hidden.chunk(2, dim=-1)
        return self.drop(self.activation(gate) * up)

    def _mix(self, rows: Tensor, chosen: Route, weights: ExpertWeights) -> tuple[Tensor, Tensor | None]:
        """The weighted sum of the routed experts' outputs, and the share of pairs that were dropped."""
        sorted_ = order(chosen.experts, self.config.experts)
        networks = partial(self._networks, weights=weights)
        outputs = self.exchange(dispatch(rows, sorted_), sorted_.ends, networks)
        return collect(outputs, chosen.gates.to(outputs.dtype), sorted_), None

    def _networks(self, rows: Tensor, ends: Tensor | None, weights: ExpertWeights) -> Tensor:
        """Rows [R, C], sorted by expert, through their networks; those of expert e end at ends[e]. None: one expert."""
        if ends is None:
            return self._even_networks(rows, None, weights)
        up, down, up_bias, down_bias = weights
        return grouped(self._activate(grouped(rows, up, up_bias, ends)), down, down_bias, ends)

    def _even_networks(self, rows: Tensor, ends: Tensor | None, weights: ExpertWeights) -> Tensor:
        """The same for rows that are equally many for each expert, as one batched product."""
        up, down, up_bias, down_bias = weights
        rows = rows.unflatten(0, (len(up), -1))
        return _batched(self._activate(_batched(rows, up, up_bias)), down, down_bias).flatten(0, 1)

    def _record_losses(self, logits: Tensor, chosen: Route, dropped: Tensor | None) -> None:
        config, losses = self.config, {}
        of_each = share(chosen.experts, config.experts)
        if config.balance:
            losses["balance"] = (config.balance, balance_loss(of_each, chosen.probabilities))
        if config.z:
            losses["z"] = (config.z, z_loss(logits))
        details = {"expert_share": of_each, "expert_gate": chosen.probabilities.detach().mean(0)}
        if dropped is not None:
            details["expert_dropped"] = dropped
        self.record(AuxiliaryLoss(losses, details))


class CapacityExperts(MixtureOfExperts):
    """In training each expert takes a fixed number of tokens, in their order; it drops the others, which keep their
    residual path (Fedus et al. 2022, sec. 2.2). In evaluation no token is dropped, so that decoding equals the full
    forward pass.
    """

    batch_invariant = False  # in training, tokens compete for capacity

    def places(self, tokens: int) -> int:
        """The capacity of each expert for this number of tokens (eq. 3)."""
        config = self.config
        assert config.capacity is not None
        return min(tokens, math.ceil(config.capacity * tokens * config.active / config.experts))

    def _mix(self, rows: Tensor, chosen: Route, weights: ExpertWeights) -> tuple[Tensor, Tensor | None]:
        if not self.training:
            return super()._mix(rows, chosen, weights)
        sorted_, size = order(chosen.experts, self.config.experts), self.places(rows.shape[0])
        begins = F.pad(sorted_.ends[:-1], (1, 0))
        of_expert = begins[:, None] + torch.arange(size, device=rows.device)  # [E, places], indices of sorted pairs
        filled = of_expert < sorted_.ends[:, None]
        held = dispatch(rows, sorted_).index_select(0, of_expert.clamp(max=len(sorted_.pair) - 1).flatten())
        held = held.masked_fill(~filled.view(-1, 1), 0.0)  # [E · places, C]
        ends = size * torch.arange(1, len(begins) + 1, device=rows.device)
        outputs = self.exchange(held, ends, partial(self._even_networks, weights=weights))
        expert = chosen.experts.flatten().index_select(0, sorted_.pair)
        rank = torch.arange(len(expert), device=rows.device) - begins.index_select(0, expert)
        kept = rank < size
        back = outputs.index_select(0, expert * size + rank.clamp(max=size - 1)).masked_fill(~kept[:, None], 0.0)
        return collect(back, chosen.gates.to(back.dtype), sorted_), 1 - kept.float().mean()


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [E, P, C] times weight [E, O, C]."""
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
