"""Performer: exp(q·k), the kernel of the softmax, estimated by random features (Choromanski et al. 2021, FAVOR+).

    exp(q·k/√D) = E[φ(q)·φ(k)],   φ(x) = exp(ω·x' - |x'|²/2) / √m,   x' = x D^(-1/4),   ω ~ N(0, I)    (lemma 1)

Features are positive, so no weight is negative, and the m directions ω are orthogonal in blocks of D, which lowers the
variance of the estimate and leaves it unbiased (sec. 2.4). The error of the output is of order 1/√m.
"""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism
from regard.attention.mechanisms.linear import LinearAttention, refuse
from regard.config import option


class Performer(LinearAttention):
    """Linear attention whose features estimate the softmax.

    The exponent of a key is at most |ω|²/2, about D/2: it needs no shift, and a shift would have to be one number for
    all keys, which would leak later keys to earlier queries. The shift of a query cancels in the mean.

    New directions are drawn every ``redraw`` training steps (0: never). They are a function of the layer's ``seed`` (in
    the state dict) and the step, so that a resumed run draws the same.
    """

    directions: Tensor
    seed: Tensor

    def __init__(self, width: int, features: int, *, redraw: int = 1000, orthogonal: bool = True):
        super().__init__()
        self.redraw, self.orthogonal = redraw, orthogonal
        self.register_buffer("directions", torch.zeros(features, width))
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.reset()

    def reset(self) -> None:
        """Draw a new seed from torch's generator, and the directions."""
        self.seed.copy_(torch.randint(2**62, (), device="cpu"))
        if not self.seed.is_meta:
            self.draw(0)

    def advance(self, step: int) -> None:
        """Redraw the directions if training step number ``step`` (from 0) is due."""
        if self.redraw and step and step % self.redraw == 0:
            self.draw(step // self.redraw)

    @torch.no_grad()
    def draw(self, number: int) -> None:
        """Draw the ``number``-th directions of this seed, in place."""
        self.directions.copy_(_draw(self.seed, number, *self.directions.shape, self.orthogonal))

    def of_queries(self, q: Tensor) -> Tensor:
        return positive(q, self.directions, shifted=True)

    def of_keys(self, k: Tensor) -> Tensor:
        return positive(k, self.directions)

    def feature_count(self, width: int) -> int:
        return self.directions.shape[0]


def positive(x: Tensor, directions: Tensor, *, shifted: bool = False) -> Tensor:
    """φ(x): [..., D] to [..., m]. ``shifted``: each row scaled so that its greatest feature is 1."""
    with torch.autocast(x.device.type, enabled=False):  # exponents need full precision
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        x = x * x.shape[-1] ** -0.25
        along = x @ directions.to(x.dtype).mT
        if shifted:
            return (along - along.detach().amax(-1, keepdim=True)).exp()
        shift = (x.square().sum(-1, keepdim=True) + math.log(len(directions))) / 2
        return (along - shift).exp()


# An operation of its own, so that a model can be recorded without the value of the seed (regard.parallel.recording).
@torch.library.custom_op("regard::directions", mutates_args=())
def _draw(seed: Tensor, number: int, count: int, width: int, orthogonal: bool) -> Tensor:
    spread = hashlib.blake2b(f"{seed.item()} {number}".encode(), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(spread, "little"))
    return draw_directions(count, width, generator, orthogonal=orthogonal)


@_draw.register_fake
def _(seed: Tensor, number: int, count: int, width: int, orthogonal: bool) -> Tensor:
    return seed.new_empty(count, width, dtype=torch.float64)


def draw_directions(count: int, width: int, generator: torch.Generator, *, orthogonal: bool = True) -> Tensor:
    """``count`` draws of N(0, I) [count, width]; ``orthogonal``: within blocks of ``width``."""
    normal = torch.randn(count, width, generator=generator, dtype=torch.float64, device="cpu")
    if not orthogonal:
        return normal
    blocks = -(-count // width)
    square = torch.randn(blocks, width, width, generator=generator, dtype=torch.float64, device="cpu")
    basis, triangle = torch.linalg.qr(square)
    basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # uniform over rotations (Mezzadri 2007)
    return basis.mT.flatten(0, 1)[:count] * normal.norm(dim=1, keepdim=True)  # norms of independent draws


@dataclass(frozen=True)
class PerformerConfig(AttentionConfig, kind="performer"):
    """The softmax estimated by random features, in linear time."""

    features: int | None = option(None, "random features per head (default: four times the head's width)", least=1)
    redraw: int = option(1000, "training steps between redraws of the features (0: never)", least=0)
    orthogonal: bool = option(True, "features orthogonal in blocks: lower variance")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        refuse(spec, "performer")
        features = 4 * spec.head_width if self.features is None else self.features
        return Performer(spec.head_width, features, redraw=self.redraw, orthogonal=self.orthogonal)
