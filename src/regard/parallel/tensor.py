"""Tensor parallelism: the ranks of a group share the heads and the hidden units of every layer (Shoeybi et al. 2019).

    y = Σ_t  W_out[:, t] f(W_in[t] x)        rank t has rows t of W_in and columns t of W_out (sec. 3, fig. 3)

f treats each head, or each hidden unit, by itself, so that the only message is the sum. The backward pass is the mirror
image: the gradient of x is summed over the ranks, and that of y is the same on all of them.

Each matrix that is stacked in a fused one (queries, keys and values; gate and up) is cut by itself: the rows of a rank
are not adjacent, so `ColwiseParallel` of the whole fused matrix would give a rank heads of queries only. Norms,
embeddings, the output layer and feed-forward networks of other kinds stay whole: every rank computes the same with them
and gets the same gradients. A gain that the heads share is whole too, but each rank sees its own heads only; so its
gradient is summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from regard.attention import Bias, Chain, GridRelative, Mechanism, Relative, RelativeBuckets, Softmax
from regard.errors import UserError
from regard.models import Model
from regard.nn.attention import (
    CrossAttention,
    QKNorm,
    SelfAttention,
    SharedCrossAttention,
    SharedQKSelfAttention,
    SharedSelfAttention,
)
from regard.nn.feedforward import FeedForward, GatedFeedForward
from regard.nn.fused.onednn import OneDNNLinear
from regard.nn.fused.ops import FusedSquaredFeedForward
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.parallel.layout import DIMENSIONS
from regard.parallel.pieces import Cut
from regard.parallel.tensor_layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    SharedGainRMSNorm,
    with_local_heads,
)
from regard.parallel.world import World

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ATTENTIONS = (SelfAttention, SharedSelfAttention, SharedQKSelfAttention, CrossAttention, SharedCrossAttention)
NETWORKS = (FeedForward, FusedSquaredFeedForward, GatedFeedForward)
ALONE = "or use --layout.tensor 1"


def apply(model: Model, world: World) -> None:
    """Cut the attention and the feed-forward networks of ``model`` in place; ``model.cuts`` says how."""
    if world.layout.tensor == 1:
        return
    place = world.layout.coordinates(world.rank)[DIMENSIONS.index("tensor")]
    cutter = _Cutter(model, Share(place, world.layout.tensor), world.group("tensor"))
    found = 0
    for name, module in list(model.named_modules()):
        if isinstance(module, SelfAttention | CrossAttention):
            cutter.attention(name, module)
        elif type(module) in NETWORKS:
            cutter.network(name, module)
        else:
            continue
        found += 1
    if not found:
        raise UserError(
            f"{type(model).__name__} has no attention or feed-forward network that tensor parallelism could cut; "
            "use --layout.tensor 1, and --layout.shard to share the model among ranks"
        )


class CutMatrix(NamedTuple):
    """How the ranks of a group have cut a matrix, for an optimizer that needs it whole."""

    cut: Cut
    group: ProcessGroup | None

    def joined(self, part: Tensor) -> Tensor:
        """The whole matrix, on each rank, from its parts on all of them, which are of one size."""
        dim, whole = self.cut.dim, part.new_empty(self.cut.shape)
        ranks = whole.shape[dim] // part.shape[dim]
        parts, own = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(ranks)], 0
        if self.group is not None:  # none for a plan, which needs shapes only
            distributed.all_gather(parts, part.contiguous(), group=self.group)
            own = self.group.rank()
        lengths = [end - start for start, end in self.cut.ranges]
        for rank, theirs in enumerate(parts):
            for (start, _), slices in zip(self.cut.ranges, theirs.split(lengths, dim), strict=True):
                length = slices.shape[dim]
                whole.narrow(dim, start + (rank - own) * length, length).copy_(slices)
        return whole


def cut_matrices(model: Model) -> dict[Tensor, CutMatrix]:
    """The matrices of ``model`` that ``apply`` has cut."""
    layers = [module for module in model.modules() if isinstance(module, ColumnParallelLinear | RowParallelLinear)]
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {layer.weight: CutMatrix(model.cuts[names[layer.weight]], layer.group) for layer in layers}


class Share(NamedTuple):
    """Which of equal shares a rank has."""

    number: int
    count: int

    def ranges(self, *parts: int) -> tuple[tuple[int, int], ...]:
        """Its range of each of several stacked parts, which have these sizes.

        >>> Share(1, 2).ranges(8, 4, 4)
        ((4, 8), (10, 12), (14, 16))
        """
        found, start = [], 0
        for size in parts:
            each = size // self.count
            found.append((start + self.number * each, start + (self.number + 1) * each))
            start += size
        return tuple(found)


class _Cutter:
    """Replaces the parameters of layers by this rank's share of them."""

    def __init__(self, model: Model, share: Share, group: ProcessGroup | None):
        self.cuts, self.share, self.group = model.cuts, share, group
        self.done: set[Bias] = set()  # layers may share one
        self.names: dict[Tensor, list[str]] = {}  # a layer that is used twice has two names
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.names.setdefault(parameter, []).append(name)

    def attention(self, name: str, layer: SelfAttention | CrossAttention) -> None:
        """The heads of this rank, and the keys and values that they share."""
        if type(layer) not in ATTENTIONS:
            option = "projection separate" if isinstance(layer.mechanism, Softmax) else "attention softmax"
            raise UserError(
                f"{name} is a {type(layer).__name__}, which tensor parallelism cannot cut by heads; "
                f"set --model.{option}, {ALONE}"
            )
        mechanism = _softmax(name, layer.mechanism)
        self._check(name, "heads", layer.heads, "--model.heads")
        self._check(name, "key/value heads", layer.kv_heads, "--model.kv_heads")
        first = self.share.number * layer.heads // self.share.count
        layer.heads, layer.kv_heads = layer.heads // self.share.count, layer.kv_heads // self.share.count
        for part in ("qkv", "q", "kv"):
            if hasattr(layer, part):
                self._rows(f"{name}.{part}", getattr(layer, part))
        self._columns(f"{name}.out", layer.out)
        self._norm(name, layer.norm_qk, layer)
        if mechanism.bias is not None:
            self._bias(name, mechanism.bias, first)
        mechanism.register_forward_pre_hook(_check_plan)

    def network(self, name: str, layer: Any) -> None:
        """The hidden units of this rank."""
        if layer.drop.p:
            raise UserError(
                f"{name} has dropout on hidden units, which tensor-parallel ranks would draw alike for different "
                f"units; set --model.feedforward.dropout 0, {ALONE}"
            )
        gated = isinstance(layer, GatedFeedForward)
        self._check(name, "hidden units", layer.down.in_features, "--model.feedforward.ratio")
        part = "gate_up" if gated else "up"
        self._rows(f"{name}.{part}", getattr(layer, part), (layer.down.in_features,) * (1 + gated))
        self._columns(f"{name}.down", layer.down)

    def _check(self, name: str, what: str, count: int, option: str) -> None:
        ranks = self.share.count
        if count % ranks:
            fits = max(n for n in range(1, ranks) if count % n == 0)
            raise UserError(
                f"{name} has {count} {what}, which {ranks} tensor-parallel ranks cannot share equally; use "
                f"--layout.tensor {fits}, or change {option} to a multiple of {ranks}"
            )

    def _rows(self, name: str, layer: Linear, parts: tuple[int, ...] = ()) -> None:
        """Of each of the stacked ``parts`` (default: those of the layer) this rank's rows, and of the biases."""
        _plain(name, layer)
        ranges, ranks = self.share.ranges(*(parts or layer.parts)), self.share.count
        self._cut(layer, "weight", 0, ranges)
        if layer.bias is not None:
            self._cut(layer, "bias", 0, ranges)
        layer.parts = tuple(part // ranks for part in layer.parts)
        layer.out_features //= ranks
        layer.__class__ = ColumnParallelLinear
        layer.group = self.group  # type: ignore[assignment]

    def _columns(self, name: str, layer: Linear) -> None:
        """This rank's columns; the bias stays whole."""
        _plain(name, layer)
        self._cut(layer, "weight", 1, self.share.ranges(layer.in_features))
        layer.in_features //= self.share.count
        layer.__class__ = RowParallelLinear
        layer.group = self.group  # type: ignore[assignment]

    def _cut(self, module: nn.Module, attribute: str, dim: int, ranges: tuple[tuple[int, int], ...]) -> None:
        whole = getattr(module, attribute)
        cut = Cut(tuple(whole.shape), dim, ranges, "tensor")
        setattr(module, attribute, nn.Parameter(cut.of(whole.detach()), whole.requires_grad))
        for name in self.names[whole]:
            self.cuts[name] = cut

    def _norm(self, name: str, norm: nn.Module, layer: SelfAttention | CrossAttention) -> None:
        if isinstance(norm, QKNorm):
            norm.heads = [layer.heads, layer.kv_heads]
        for part in (norm.q, norm.k) if isinstance(norm, QKNorm) else (norm,):
            if isinstance(part, RMSNorm):
                part.__class__ = SharedGainRMSNorm
                part.group = self.group  # type: ignore[assignment]
            elif not isinstance(part, nn.Identity):
                raise UserError(
                    f"{name} normalizes queries and keys by a {type(part).__name__}, which tensor parallelism does not "
                    f"know; set --model.qk_norm false, {ALONE}"
                )

    def _bias(self, name: str, bias: Bias, first: int) -> None:
        if bias in self.done:
            return
        self.done.add(bias)
        if isinstance(bias, Chain):
            for part in bias.parts:
                assert isinstance(part, Bias)
                self._bias(name, part, first)
        elif isinstance(bias, Relative | RelativeBuckets | GridRelative):  # the first axis of their tables is the head
            for attribute, table in list(bias.named_parameters(recurse=False)):
                self._cut(bias, attribute, 0, self.share.ranges(len(table)))
        elif not any(True for _ in bias.parameters()):
            bias.__class__ = with_local_heads(type(bias))
            bias.first_head = first  # type: ignore[assignment]
        else:
            raise UserError(
                f"{name} has a {type(bias).__name__} bias, whose parameters tensor parallelism cannot assign to heads; "
                f"set --model.position rotary, {ALONE}"
            )


def _softmax(name: str, mechanism: Mechanism) -> Softmax:
    """The mechanism, if each head's output follows from its own queries, keys and values without any parameters."""
    of_bias = set() if mechanism.bias is None else set(mechanism.bias.parameters())
    if not isinstance(mechanism, Softmax) or not mechanism.per_head or set(mechanism.parameters()) - of_bias:
        plain = type(mechanism) is Softmax
        raise UserError(
            f"{name} has {type(mechanism.score if plain else mechanism).__name__} attention, which tensor parallelism "
            f"cannot cut by heads; set --model.attention softmax, or another kind that differs by mask only, {ALONE}"
        )
    if mechanism.dropout:
        raise UserError(
            f"{name} has dropout on attention weights, which tensor-parallel ranks would draw alike for different "
            f"heads; set --model.attention_dropout 0, {ALONE}"
        )
    return mechanism


def _plain(name: str, layer: Linear) -> None:
    if type(layer) not in (Linear, OneDNNLinear):
        raise UserError(
            f"{name} is a {type(layer).__name__}, and tensor parallelism cuts plain matrices only; "
            f"set --train.adapt full, {ALONE}"
        )


def _check_plan(mechanism: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse what differs by head and comes with the batch: it is made for all heads."""
    plan = inputs[3]
    if plan.mask.distinct_heads > 1:
        raise UserError(f"the mask {plan.mask} differs by head, which tensor parallelism does not cut; {ALONE[3:]}")
    if plan.bias is not None:
        raise UserError(
            "this model adds numbers to the scores of each head, such as those of the edges of a graph, which tensor "
            f"parallelism does not cut; {ALONE[3:]}"
        )
