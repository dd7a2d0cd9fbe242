"""What the feed-forward network is for: attention alone, other widths, a convolution; and tokens that become alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Full, Range
from regard.config import load
from regard.data import TextConfig, TextData
from regard.measure.interval import Mean, difference
from regard.models import EncoderConfig, GPTConfig
from regard.models.encoder import TransformerEncoder
from regard.models.size import describe
from regard.nn.attention import AttentionContext
from regard.nn.convolution import CausalConvolution
from regard.nn.feedforward import (
    FeedForwardConfig,
    FeedForwardLayer,
    NoFeedForward,
    ReLUSquared,
)
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.depth import format_loss
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import band, compared, held_out, train_shortly
from regard.train import CosineScheduleConfig, Experiment, MuonConfig, TrainConfig

STEPS, SEEDS, CONTEXT, LAYERS, WIDTH = 300, 3, 64, 2, 64
DATA = TextConfig(batch=16)
RATIOS = (0, 1, 2, 4, 8)  # hidden units over the width, at the width WIDTH
WIDTHS = (112, 96, 80, 64, 48)  # at equal parameters; the widest has no network
NONE, USUAL = "attention only", f"width {WIDTH}"
LINEAR, KERNEL = f"{USUAL}, no activation", f"{USUAL}, kernel 3"
DEPTH, ALIKE = 24, 0.01  # layers of the networks of random weights; tokens are alike if less than this is their own
STACKS = {  # residual connections, feed-forward network
    "attention": (False, False),
    "attention, feed-forward": (False, True),
    "attention, residual": (True, False),
    "attention, feed-forward, residual": (True, True),
}
Losses = dict[str, list[float]]  # by variant, then by seed


class Variant(NamedTuple):
    """A model's width, and its feed-forward network: down(activation(up(x))), up a convolution."""

    width: int
    units: int  # hidden; 0: no network
    kernel: int = 1
    linear: bool = False


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What is the feed-forward network for? Attention only, wider networks and a convolution in its place.

    regard study ffn

    Character models of Shakespeare with 2 layers, 300 steps, three seeds: at width 64 with 0 to 8 times as many hidden
    units, and at equal parameters, where a wider network leaves a narrower model; with a convolution of kernel 3 in its
    place, and without an activation. Then how alike the tokens become in 24 layers of random weights, with and without
    the network and residual connections (Dong et al. 2021). Three to six minutes on one core.
    """
    steps = max(2, round(STEPS * scale))
    data = DATA.build(CONTEXT)
    fixed = {f"{ratio}x": Variant(WIDTH, ratio * WIDTH) for ratio in RATIOS}
    equal = equal_parameters(data.vocabulary)
    variants = fixed | equal
    sizes = {name: parameters(one, data.vocabulary) for name, one in variants.items()}
    losses: Losses = {}
    for name, one in variants.items():
        losses[name] = [validation_loss(one, data, steps, seed + n) for n in range(SEEDS)]
        say(f"{name} ({sizes[name]:,} parameters): {Mean.of(losses[name])}")
    own = {name: own_shares(*parts, seed) for name, parts in STACKS.items()}
    return Study(
        words(losses, own),
        [_by_ratio(losses, equal, steps), _at_equal_size(losses, sizes, equal), _shares(own)],
        {
            "losses": {k: [*map(format_loss, v)] for k, v in losses.items()},
            "parameters": sizes,
            "variants": {k: v._asdict() for k, v in variants.items()},
            "own_shares": own,
        },
        f"{LAYERS} layers, context {CONTEXT}, batch {DATA.batch}, {steps} steps, Muon, seeds {seed} to "
        f"{seed + SEEDS - 1}; {DEPTH} random layers of width {WIDTH}; {machine()}",
    )


class ConvolutionFeedForward(FeedForwardLayer):
    """down(activation(up(x))) with a causal convolution; with kernel 1 it is the position-wise network."""

    def __init__(self, width: int, hidden: int, kernel: int, activation: nn.Module):
        super().__init__()
        self.up = CausalConvolution(width, hidden, kernel=kernel)
        self.down = Linear(hidden, width, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


@dataclass(frozen=True)
class StudiedFeedForwardConfig(FeedForwardConfig):
    """The network of a variant. It has no kind: it cannot decode token by token with a kernel above 1."""

    variant: Variant = field(default_factory=lambda: Variant(WIDTH, WIDTH))

    def build(self, width: int, *, bias: bool) -> FeedForwardLayer:
        _, units, kernel, linear = self.variant
        activation = nn.Identity() if linear else ReLUSquared()
        return ConvolutionFeedForward(width, units, kernel, activation) if units else NoFeedForward()


def model_config(variant: Variant, vocabulary: int) -> GPTConfig:
    """A GPT of the variant's width with its network."""
    network = StudiedFeedForwardConfig(variant=variant)
    return GPTConfig(vocabulary=vocabulary, context=CONTEXT, layers=LAYERS, width=variant.width, feedforward=network)


def parameters(variant: Variant, vocabulary: int) -> int:
    """The number of parameters of the model."""
    return describe(model_config(variant, vocabulary))["parameters"]


def equal_parameters(vocabulary: int) -> dict[str, Variant]:
    """Variants with as many parameters as the widest model has without a network, to half a hidden unit."""
    widest, *others = WIDTHS
    found = {NONE: Variant(widest, 0)}
    budget = parameters(found[NONE], vocabulary)
    shapes = {f"width {width}": Variant(width, 1) for width in others}
    shapes |= {KERNEL: Variant(WIDTH, 1, kernel=3), LINEAR: Variant(WIDTH, 1, linear=True)}
    for name, one in shapes.items():
        least, next_one = (parameters(one._replace(units=n), vocabulary) for n in (1, 2))
        found[name] = one._replace(units=1 + round((budget - least) / (next_one - least)))
    return found


def validation_loss(variant: Variant, data: TextData, steps: int, seed: int) -> float:
    """The loss on held-out text after training."""
    train = TrainConfig(steps, optimizer=MuonConfig(), schedule=CosineScheduleConfig(), device="cpu")
    run = train_shortly(Experiment(model_config(variant, data.vocabulary), DATA, train=train, seed=seed), data)
    return run.validation_loss(held_out(data, 64, 8))


@torch.no_grad()
def own_shares(residual: bool, network: bool, seed: int) -> list[float]:
    """By layer of a random network, ``own_share`` of its output; 8 rows of 64 random tokens, without positions.

    Without a network, a layer is attention alone: x + attention(norm(x)), or without the residual x.
    """
    torch.manual_seed(seed)
    parts = {"position": "none", "feedforward": "relu", "qk_norm": False}
    model = load(EncoderConfig, {"context": 64, "width": WIDTH, "layers": DEPTH, "heads": 4, **parts}).build()
    assert isinstance(model, TransformerEncoder)
    initialize(model, nn.init.xavier_uniform_, normal(1.0))
    x = torch.randn(8, 64, WIDTH, dtype=torch.double)
    blocks = model.double().eval().blocks.layers
    plan = blocks[0].attention.mechanism.plan(Full(), Range(64), like=x)
    context = AttentionContext(plan, model.position.rotation(Range(64).phases(x.device)))
    shares = [own_share(x)]
    for block in blocks:
        out = block.attention(block.norm_attention(x), context)
        x = x + out if residual else out
        if network:
            out = block.feedforward(block.norm_feedforward(x))
            x = x + out if residual else out
        shares.append(own_share(x))
    return shares


def own_share(x: Tensor) -> float:
    """|X - 1 m| / |X|, m the mean of the tokens [B, N, C]: 0 if all tokens of a row are alike (Dong et al., eq. 2)."""
    own = x - x.mean(1, keepdim=True)
    return (own.norm(dim=(1, 2)) / x.norm(dim=(1, 2))).mean().item()


def words(losses: Losses, own: Mapping[str, list[float]]) -> list[str]:
    """What the network gains at equal steps and at equal parameters, its activation and kernel, and the tokens."""
    equal = [name for name in losses if name not in {f"{ratio}x" for ratio in RATIOS}]
    lowest = min(equal, key=lambda name: fmean(losses[name]))
    gain = difference(losses[USUAL], losses[NONE])
    holds = "earns its parameters" if gain.value < -gain.error else "does not measurably earn its parameters"
    alike = [
        f"{name} {'not' if (layer := first_alike(shares)) is None else f'from layer {layer} on'}, "
        f"{shares[-1]:.2g} at the end"
        for name, shares in own.items()
    ]
    return [
        f"At width {WIDTH} and equal steps, the loss with 4 times as many hidden units is "
        f"{compared(losses['4x'], losses['0x'], 'with attention only')}; with 8 times as many it is "
        f"{compared(losses['8x'], losses['4x'], 'with 4 times')}.",
        f"At equal parameters, where a model of attention only is {WIDTHS[0]} wide, the loss of one of width {WIDTH} "
        f"with a network is {compared(losses[USUAL], losses[NONE], 'that of attention only')}: the network {holds} "
        f"here. The lowest mean loss: {lowest}, {fmean(losses[lowest]):.3f}.",
        f"With a convolution of kernel 3 as its first layer, at equal parameters, the loss is "
        f"{compared(losses[KERNEL], losses[USUAL], 'with kernel 1')}; without an activation it is "
        f"{compared(losses[LINEAR], losses[USUAL], 'with one')}.",
        f"Tokens become alike, with less than {ALIKE:.0%} of their own, in {DEPTH} layers of random weights: "
        f"{'; '.join(alike)}.",
        "± is half the 95% confidence interval over pairs of equal seeds. One rate for all sizes, two layers and short "
        "runs: a deeper model or a longer training may rank them otherwise. Random weights show what a model begins "
        "with, not what it learns.",
    ]


def first_alike(shares: list[float]) -> int | None:
    """The first layer from which on the tokens are alike."""
    own = [layer for layer, share in enumerate(shares) if share >= ALIKE]
    return own[-1] + 1 if own[-1] + 1 < len(shares) else None


def _by_ratio(losses: Losses, equal: Mapping[str, Variant], steps: int) -> ChartSection:
    position_wise = {k: v for k, v in equal.items() if k not in (KERNEL, LINEAR)}  # from the widest on
    curves = {
        f"width {WIDTH}": {float(ratio): losses[f"{ratio}x"] for ratio in RATIOS},
        "equal parameters": {v.units / v.width: losses[k] for k, v in position_wise.items()},
    }
    return ChartSection(
        f"Validation loss after {steps} steps, by the size of the network",
        "Nats per character, mean of the seeds with its 95% interval. At width 64 a larger network adds parameters; at "
        "equal parameters it leaves a narrower model.",
        [band(name, found, color) for color, (name, found) in enumerate(curves.items())],
        Axes("hidden units over the width", "loss, nats per character", x_low=0),
    )


def _at_equal_size(losses: Losses, sizes: Mapping[str, int], equal: Mapping[str, Variant]) -> ChartSection:
    rows = [
        (k, f"{v.units:,}", f"{sizes[k]:,}", *map(format_loss, losses[k]), str(Mean.of(losses[k])))
        for k, v in equal.items()
    ]
    return ChartSection(
        "At equal parameters",
        "The mean validation loss. A model that spends less on its network is wider.",
        [],
        Axes("", "loss, nats per character"),
        named=sorted(((name, fmean(losses[name])) for name in equal), key=lambda one: one[1]),
        columns=("model", "hidden units", "parameters", *(f"seed {n + 1}" for n in range(SEEDS)), "mean"),
        rows=rows,
    )


def _shares(own: Mapping[str, list[float]]) -> ChartSection:
    return ChartSection(
        f"What is a token's own, by layer of {DEPTH} of random weights",
        "The norm of the tokens less their mean, over the norm of the tokens: at 0 all tokens of a row are alike, and "
        "later layers cannot tell them apart. Logarithmic.",
        lines({name: [(float(i), max(x, 1e-16)) for i, x in enumerate(v)] for name, v in own.items()}, marks=False),
        Axes("layer", "share of a token's own", log=True, x_low=0),
    )
