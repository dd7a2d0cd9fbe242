"""Mechanisms: from queries, keys and values to mixed values; and the choice of one in a config.

``Softmax`` is the exact one. A config names a mechanism and a mask that the model ANDs to its own (a language model's
is causal). Each other kind is declared beside its mechanism; a subclass with a ``kind`` is registered by being defined.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention.backends.choose import find, run, with_backend
from regard.attention.cache import DecodeInput, KVCache
from regard.attention.call import Backend, Call, Out, Plan, dense_pairs, weigh
from regard.attention.masks.from_user import MaskLike, from_user
from regard.attention.masks.mask import Full, Mask
from regard.attention.normalizer import (
    HardLookup,
    Normalizer,
    NormalizerConfig,
    SoftmaxNormalizer,
    SoftmaxNormalizerConfig,
)
from regard.attention.score import Bias, Chain, Dot, Score, SoftCap
from regard.attention.slots import AnySlots, Range
from regard.config import Choice, option


class ModuleProperties:
    """Base class of modules whose outputs may lack a property that others have.

    `regard prove` skips a claim that a module declares not to keep, and names the module.
    """

    steppable: bool = True  # decoding token by token gives the outputs of the full forward pass
    batch_invariant: bool = True  # the output for a row does not depend on the other rows
    graphable: bool = True  # a forward pass never waits for the GPU, so a CUDA graph can capture it
    discontinuous: bool = False  # selects a few of many by score (top-k, hashing, routing): rounding may change them
    self_updating: bool = False  # a training pass writes to its weights, besides the optimizer


class Mechanism(nn.Module, ModuleProperties):
    """Base class of all attentions. Exactness is in the type: no option trades it for speed.

    A mechanism refuses in ``plan`` the masks and kinds of slots that it does not support, with a UserError that says
    why and what to use instead.
    """

    recurrent: bool = False  # a state per channel instead of scores; ``weights`` are mean sizes over the channels

    def __init__(self) -> None:
        super().__init__()
        self.bias: Bias | None = None

    def plan(self, mask: Mask, queries: AnySlots, keys: AnySlots | None = None, *, like: Tensor) -> Plan:
        """Prepare for calls between these slots, on ``like``'s device. Default ``keys``: the queries' own tokens.

        The plan of one layer serves all layers with the same config, so it does not depend on parameters.
        """
        device = like.device
        queries = queries.to(device)
        return Plan(mask.to(device), queries, queries if keys is None else keys.to(device), keys is None)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        """q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E] to [B, H, Q, E]."""
        raise NotImplementedError

    def reset(self) -> None:
        """Initialize the mechanism's own parameters. Default: they keep their values."""

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor | None:
        """The weight of every key for every query, [B, H, Q, K], without dropout; None: see ``unobservable``.

        They may be negative and need not sum to one. Only the plan's mask and slots are read, so that a plan for some
        of the queries will do.
        """
        return None

    @property
    def unobservable(self) -> str | None:
        """Why ``weights`` returns None; None where it returns the weights.

        A class that overrides ``forward`` but not ``weights`` has none: those it inherits belong to another formula.
        """
        definer = next(base for base in type(self).__mro__ if {"forward", "weights"} & vars(base).keys())
        defined = definer is not Mechanism and "weights" in vars(definer)
        return None if defined else f"{type(self).__name__} does not define the weight of each key"

    def advance(self, step: int) -> None:
        """Called before training step number ``step`` (from 0), for mechanisms that redraw random features."""

    @property
    def grows(self) -> bool:
        """Whether the decoding state is the plain KV cache, which may be enlarged between steps."""
        return type(self).start is Mechanism.start and type(self).step is Mechanism.step

    def start(self, batch: int, heads: int, size: int, width: int, like: Tensor) -> Any:
        """The empty cache of one layer: a named tuple of tensors with the batch first, updated in place.

        ``size`` is the number of tokens that may be visible at once; a state of constant size ignores it.
        """
        return KVCache.start(batch, heads, size, width, like)

    def step(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, cache: Any, decode: DecodeInput) -> Out:
        """Add the tokens of a decoding step to the cache and attend from them. Empty slots change nothing."""
        k, v = decode.store(cache, k, v)
        return self(q, k, v, plan)


class Softmax(Mechanism):
    """softmax(score·scale + bias) v over the keys that the plan allows (Vaswani et al. 2017, eq. 1).

    ``temperature`` divides the scores; 0 is hard lookup. Any other ``normalizer`` takes the softmax's place.
    """

    def __init__(
        self,
        score: Score | None = None,
        bias: Bias | None = None,
        *,
        scale: float | None = None,
        temperature: float = 1.0,
        normalizer: Normalizer | None = None,
        dropout: float = 0.0,
        backend: str | Backend = "auto",
    ):
        super().__init__()
        if temperature < 0:
            raise ValueError(f"a temperature is zero or more, not {temperature}")
        if normalizer is not None and temperature != 1:
            raise ValueError("give the temperature to the normalizer itself")
        self.score = Dot() if score is None else score
        self.bias = bias
        self.scale = scale
        softmax = SoftmaxNormalizer(temperature) if temperature else HardLookup()
        self.normalizer: Normalizer = softmax if normalizer is None else normalizer
        self.discontinuous = self.normalizer.discontinuous
        self.dropout = dropout
        self.backend = backend

    @property
    def per_head(self) -> bool:
        """Whether the weights of a head are the normalized scores of the queries and keys of that head alone."""
        return type(self).weights is Softmax.weights and self.score.per_head and self.normalizer.per_head

    def plan(
        self,
        mask: Mask,
        queries: AnySlots,
        keys: AnySlots | None = None,
        *,
        like: Tensor,
        bias: Bias | None = None,
    ) -> Plan:
        plan = super().plan(mask, queries, keys, like=like)._replace(bias=bias)
        probe = self.call(like, like, like, plan)  # shapes are not read
        return with_backend(probe.plan, find(probe, self.backend), like.device)

    def call(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, weights: bool = False) -> Call:
        """The call that ``forward`` makes; ``explain`` takes it too."""
        dropout = self.dropout if self.training else 0.0
        bias = plan.bias if self.bias is None else self.bias if plan.bias is None else Chain(self.bias, plan.bias)
        return Call(q, k, v, plan, self.score, self.normalizer, bias, self.scale, dropout, weights)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        return run(self.call(q, k, v, plan), self.backend)

    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        return weigh(self.call(q, k, k, plan), dense_pairs(plan, q))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: MaskLike | None = None,
    *,
    queries: AnySlots | None = None,
    keys: AnySlots | None = None,
    mechanism: Softmax | None = None,
    weights: bool = False,
) -> Out:
    """The operator in one call: q [..., Q, D], k and v [..., K, D], with up to two leading axes (batch, heads).

    ``mask`` is a Mask, a boolean tensor (True: may attend, as in ``F.scaled_dot_product_attention``) or a float tensor
    (added to the scores), both broadcastable to [B, H, Q, K], text, or a function of (q_index, k_index) or
    (b, h, q_index, k_index) as FlexAttention takes it; see ``masks/from_user.py``.

    Without ``queries`` and ``keys`` both sides count from 0, as tokens of the same text if Q = K; ``queries`` alone
    describes both sides if Q = K.

    >>> import torch
    >>> from regard.attention import Causal, attend
    >>> x = torch.randn(5, 8)
    >>> attend(x, x, x, Causal()).values.shape
    torch.Size([5, 8])
    >>> same = "causal", torch.ones(5, 5).bool().tril(), lambda q, k: q >= k
    >>> [bool((attend(x, x, x, mask).values - attend(x, x, x, Causal()).values).abs().max() < 1e-5) for mask in same]
    [True, True, True]
    """
    missing = 4 - q.ndim
    if missing < 0 or {k.ndim, v.ndim} != {q.ndim}:
        raise ValueError(f"q, k and v have the same number of axes, 2 to 4: {q.ndim}, {k.ndim} and {v.ndim} were given")
    q, k, v = (x[(None,) * missing] for x in (q, k, v))
    same = keys is None and q.shape[2] == k.shape[2]
    queries = Range(q.shape[2]) if queries is None else queries
    others = None if same else (Range(k.shape[2]) if keys is None else keys)
    mask, bias = from_user(mask, q, k, queries, queries if others is None else others)
    mechanism = Softmax() if mechanism is None else mechanism
    call = mechanism.call(q, k, v, Mechanism.plan(mechanism, mask, queries, others, like=q), weights)
    if bias is not None:  # into the call: PyTorch 2.11 cannot compile a new module that holds another
        call = call._replace(bias=bias if call.bias is None else Chain(call.bias, bias))
    values, weighed = run(call, mechanism.backend)
    lead = (0,) * missing
    return Out(values[lead], None if weighed is None else weighed[lead])


class LayerSpec(NamedTuple):
    """The sizes and options of one attention layer."""

    heads: int
    kv_heads: int
    head_width: int
    context: int  # the longest training sequence
    bias: Bias | None = None  # the position bias
    dropout: float = 0.0
    backend: str = "auto"


class AttentionConfig(Choice):
    """The attention of a layer."""

    def pattern(self) -> Mask:
        """The mask that is ANDed to the model's own."""
        return Full()

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        """A mechanism for one layer; a UserError names what it does not support (a bias, dropout)."""
        raise NotImplementedError

    @property
    def layer(self) -> Callable[[Any, Mechanism], Any] | None:
        """What builds the layer around the mechanism, given its sizes, if its inputs are not queries, keys and values.

        Default: None, the model's projection.
        """
        return None


def exact(
    spec: LayerSpec, cap: float | None = None, normalizer: Normalizer | None = None, scale: float | None = None
) -> Softmax:
    """Softmax attention with the layer's bias; ``cap`` is a soft cap on the scores before the bias."""
    bias = spec.bias
    if cap is not None:
        bias = SoftCap(cap) if bias is None else Chain(SoftCap(cap), bias)
    return Softmax(bias=bias, scale=scale, normalizer=normalizer, dropout=spec.dropout, backend=spec.backend)


@dataclass(frozen=True)
class SoftmaxConfig(AttentionConfig, kind="softmax"):
    """Exact attention over all tokens."""

    cap: float | None = option(None, "soft cap on the scores: cap * tanh(score / cap)", above=0)
    normalizer: NormalizerConfig = field(default_factory=SoftmaxNormalizerConfig)
    scale: float | None = option(None, "factor of the scores (default: 1 / root of the head width)", above=0)

    def check(self) -> None:
        super().check()
        self.normalizer.check()

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec, self.cap, self.normalizer.build(spec.context), self.scale)
