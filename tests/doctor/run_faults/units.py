"""Units that are dead, and experts with no tokens or with nearly all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import LinearConfig
from regard.data import BytesConfig
from regard.nn.experts.moe import MixtureOfExperts, MoEConfig
from regard.nn.experts.routing import route, share
from regard.nn.feedforward import ReGLUConfig, ReLUConfig
from regard.train import MuonConfig
from regard.train.engine import Engine
from run_faults.kit import MIXTURE, Case, Fault, Sabotage, Seen, altered, gpt, mistranslated, training
from run_faults.sabotage import CONVOLUTION, mixtures, parameter


def dead_layer(folder: Path) -> Case:
    low = parameter("blocks.1.feedforward.up.bias", lambda bias: bias.fill_(-20.0))
    return Case(training(folder, model=gpt(feedforward=ReLUConfig(), bias=True)), low)


def biased_router(block: int, expert: int, amount: float) -> Sabotage:
    """A constant bias in one layer's router."""

    def sabotage(engine: Engine) -> None:
        layer = cast(MixtureOfExperts, engine.model.get_submodule(f"blocks.{block}.feedforward"))
        assert isinstance(layer, MixtureOfExperts)
        bias, plain = torch.zeros(layer.config.experts), layer._logits
        bias[expert] = amount
        layer._logits = lambda rows: plain(rows) + bias

    return sabotage


def zero_gain(folder: Path) -> Case:
    return Case(training(folder, model=CONVOLUTION), parameter("blocks.2.norm.gain", Tensor.zero_))


def drift(layer: MixtureOfExperts, rate: float) -> None:
    """A router's scores get a bias that each training batch moves."""
    plain, config, bias = layer._logits, layer.config, torch.zeros(layer.config.experts)

    def logits(rows: Tensor) -> Tensor:
        found = plain(rows) + bias
        if layer.training:
            chosen = route(found.detach(), config.active, layer.normalise).experts
            bias.add_(rate * (share(chosen, config.experts) - 1 / config.experts).sign())
        return found

    layer._logits = logits


def wrong_way(rate: float) -> Sabotage:
    """Routers are balanced by a bias (Wang et al. 2024) with the wrong sign: who has many tokens gets more of them."""

    def sabotage(engine: Engine) -> None:
        for layer in engine.model.modules():
            if isinstance(layer, MixtureOfExperts):
                drift(layer, rate)

    return sabotage


def balanced_wrongly(folder: Path) -> Case:
    mixture = MoEConfig(experts=8, active=2, balance=0.0, z=0.0)
    sound = training(folder, model=gpt(feedforward=replace(mixture, balance=0.05)))
    return Case(training(folder, model=gpt(feedforward=mixture)), wrong_way(0.02), sound)


def shut_out(seen: Seen) -> bool:
    """Half the experts of the first layer get nothing at all."""
    return [seen.shares(0)[expert] for expert in (0, 1, 4, 6)] == [0.0] * 4


def widened(path: str, kept: int) -> Sabotage:
    """A feed-forward network grown to its width from `kept` units: the new ones have zeros before and behind them."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        engine.model.get_parameter(f"{path}.up.weight")[kept:] = 0.0
        engine.model.get_parameter(f"{path}.down.weight")[:, kept:] = 0.0

    return sabotage


def never_on(seen: Seen) -> bool:
    """Three units of four give zero for every token, and have nothing but the zeros they began with."""
    kept: list[torch.Tensor] = []
    network, batch = seen.model.decoder[1].feedforward, seen.batch()
    hook = network.up.register_forward_hook(lambda _, given, out: kept.append(out))
    with torch.no_grad():
        seen.model(batch.inputs, batch.source, batch.source_lengths)
    hook.remove()
    return not kept[0][..., 32:].any() and not network.down.weight[:, 32:].any()


def sparse(path: str, strength: float) -> Sabotage:
    """A penalty on the sum of what a layer's ReLUs give, which only the gradient knows of."""

    def after(module: nn.Module, given: Any, out: Tensor) -> None:
        if out.requires_grad:
            on = out.detach() > 0
            out.register_hook(lambda gradient: gradient + strength * on)

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def switched_off(seen: Seen) -> bool:
    """Hardly a unit of the layer is on for any token, and a good part of those below are."""
    tokens = seen.batch().inputs
    on = [float((seen.outputs(f"blocks.{i}.feedforward.up", tokens) > 0).float().mean()) for i in range(3)]
    return on[2] < 0.001 and min(on[:2]) > 0.1


def upper_bits(engine: Engine) -> None:
    """Experts are chosen by a hash of the token (Roller et al. 2021), and of a byte it takes the upper three bits."""
    chosen = torch.zeros(0)

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal chosen
        chosen = 30.0 * F.one_hot(given[0].flatten() >> 5, 8)

    def led(layer: MixtureOfExperts) -> None:
        plain = layer._logits
        layer._logits = lambda rows: plain(rows) + chosen

    engine.model.get_submodule("embed").register_forward_pre_hook(keep)
    for layer in mixtures(engine):
        led(layer)


def by_hash(folder: Path) -> Case:
    mixture = gpt(feedforward=MoEConfig(experts=8, active=1, balance=0.05, z=0.0))
    experiment = training(folder, model=mixture, train={"optimizer": MuonConfig()}, tokenizer=BytesConfig())
    return Case(experiment, upper_bits)


def pruned(path: str, kept: int) -> Sabotage:
    """Of a gated network's units all but the first `kept` are set to zero, at first and again after every update."""

    def sabotage(engine: Engine) -> None:
        plain, weight = engine.optimizer.step, engine.model.get_parameter(f"{path}.gate_up.weight")

        @torch.no_grad()
        def prune() -> None:
            for half in weight.chunk(2):
                half[kept:] = 0.0

        def step(factor: float) -> None:
            plain(factor)
            prune()

        prune()
        engine.optimizer.step = step

    return sabotage


def cut_away(seen: Seen) -> bool:
    """All but nine units of the layer give zero for every token, and most units of the next layer do not."""
    tokens = seen.batch().inputs
    gates, others = (seen.outputs(f"blocks.{i}.feedforward.gate_up", tokens) for i in (0, 1))
    on = [(out.chunk(2, dim=-1)[0] > 0).flatten(0, 1).any(0) for out in (gates, others)]
    return int(on[0].sum()) == 9 and float(on[1].float().mean()) > 0.9


def unbalanced(folder: Path) -> Case:
    wrong, sound = (
        training(
            folder,
            model=gpt(feedforward=MoEConfig(experts=8, active=1, balance=balance, z=0.0)),
            train={"steps": 120},
        )
        for balance in (0.0, 0.3)
    )
    return Case(wrong, sound=sound)


def left_alone(seen: Seen) -> bool:
    """At least two of eight experts of the first layer get under a thousandth of the tokens in the last thirty updates.

    Which ones depends on the CPU's rounding.
    """
    shares = [record["expert_share"][0] for record in seen.ended.run.metrics() if "expert_share" in record]
    return int((np.array(shares)[-30:].mean(0) < 1e-3).sum()) >= 2


FAULTS: list[Fault] = [
    Fault(
        "dead layer",
        "dead_units",
        r"blocks\.1\.feedforward",
        "The biases of one layer's ReLUs are so low that no unit is ever on.",
        dead_layer,
        shows=lambda seen: float(seen.outputs("blocks.1.feedforward.up", seen.batch().inputs).max()) < 0,
    ),
    Fault(
        "gains counted from zero",
        "dead_units",
        r"blocks\.2\b",
        "A norm's gains are kept less one, as some libraries do, and taken as they are: zeros enter all its units.",
        zero_gain,
        shows=lambda seen: float(seen.outputs("blocks.2.convolution", seen.batch().inputs).abs().max()) == 0,
        listed=False,
    ),
    Fault(
        "widened with zeros",
        "dead_units",
        r"decoder\.1\.feedforward",
        "A network grown to four times its width by zeros on both sides: the new units never get a gradient.",
        mistranslated(widened("decoder.1.feedforward", 32)),
        shows=never_on,
        listed=False,
    ),
    Fault(
        "penalty too strong",
        "dead_units",
        r"blocks\.2\.feedforward",
        "A penalty that should make one layer sparse turns off all of its units within a few dozen updates.",
        altered(
            sparse("blocks.2.feedforward.up", 3e-3),
            gpt(feedforward=ReLUConfig(), bias=True, attention=LinearConfig()),
        ),
        shows=switched_off,
        listed=False,
    ),
    Fault(
        "pruned too far",
        "dead_units",
        r"blocks\.0\.feedforward",
        "A layer should lose a tenth of its units and keeps a tenth: the share was taken for its opposite.",
        altered(pruned("blocks.0.feedforward", 9), gpt(feedforward=ReGLUConfig())),
        shows=cut_away,
        listed=False,
    ),
    Fault(
        "expert shut out",
        "expert_load",
        r"blocks\.1\.feedforward.*\b3\b",
        "A bias keeps every token from one expert of one layer.",
        altered(biased_router(1, 3, -30.0), MIXTURE),
        shows=lambda seen: seen.shares(1)[3] == 0 < seen.shares(0)[3],
    ),
    Fault(
        "balanced the wrong way",
        "expert_load",
        r"blocks\.0.*feedforward",
        "A bias that should even out the experts has the wrong sign: who has few tokens soon has none.",
        balanced_wrongly,
        shows=shut_out,
        listed=False,
    ),
    Fault(
        "no loss that balances",
        "expert_load",
        r"blocks\.0\.feedforward.*\b[0-7]\b",
        "One expert per token and nothing that spreads tokens: a few experts take all of them.",
        unbalanced,
        shows=left_alone,
        listed=False,
    ),
    Fault(
        "expert preferred",
        "expert_load",
        r"blocks\.0\.feedforward.*\b2\b",
        "A bias sends every token to one expert of one layer.",
        altered(biased_router(0, 2, 30.0), MIXTURE),
        shows=lambda seen: seen.shares(0)[2] > 0.45 > max(seen.shares(1)),
    ),
    Fault(
        "hash of the upper bits",
        "expert_load",
        r"blocks\.\d\.feedforward.*\b3\b",
        "Experts are chosen by the upper bits of each byte, which all small letters share.",
        by_hash,
        shows=lambda seen: min(seen.shares(layer)[3] for layer in range(3)) > 0.6,
        listed=False,
    ),
]
