"""Faults of the model: it is not what its config says, or parts of it have no effect."""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.train.engine import Engine
from run_faults.kit import Fault, Seen, altered, gpt
from run_faults.sabotage import changed_output
from run_faults.steps import SHORT, fault


def no_residual(engine: Engine) -> None:
    """A block gives what it adds to the residual stream, without the stream."""
    block = engine.model.get_submodule("blocks.1")
    block.register_forward_hook(lambda module, given, out: out - given[0])


def untied(engine: Engine) -> None:
    """The head has a copy of the embedding that it should share."""
    engine.model.unembed.weight = nn.Parameter(engine.model.unembed.weight.detach().clone())
    engine.optimizer = engine.experiment.train.optimizer.build(engine.model)


def scaled_at_the_start(engine: Engine) -> None:
    """A matrix starts with weights three times too large."""
    engine.model.get_parameter("blocks.2.feedforward.up.weight").data.mul_(3)


def one_head_zero(engine: Engine) -> None:
    """A head's output is multiplied by zero."""

    def zero(module: Any, given: Any, out: Any) -> Any:
        values = out.values.clone()
        values[:, 1] = 0
        return out._replace(values=values)

    engine.model.get_submodule("blocks.2.attention.mechanism").register_forward_hook(zero)


def masked_weights(engine: Engine) -> None:
    """Half of the columns of a matrix are set to zero before every pass."""
    layer = engine.model.get_submodule("blocks.1.feedforward.down")

    def mask(module: Any, given: Any) -> None:
        module.weight.data[:, ::2] = 0

    layer.register_forward_pre_hook(mask)


def half_detached(engine: Engine) -> None:
    """Half of what an attention gives passes no gradient."""
    changed_output("blocks.1.attention", lambda out: out / 2 + out.detach() / 2)(engine)


def rounded(engine: Engine) -> None:
    """The output of a layer is rounded to 16 bits."""
    changed_output("blocks.1.feedforward", lambda out: out.bfloat16())(engine)


def still_dropout(engine: Engine) -> None:
    """Dropout is off in training: all of it is replaced by nothing."""
    for module in engine.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for _, mechanism in engine.model.mechanisms():
        mechanism.dropout = 0.0  # type: ignore[assignment]


def unscaled_dropout(engine: Engine) -> None:
    """Dropout does not divide what it keeps by one minus its rate."""
    changed_output("drop", lambda out: 0.8 * out if engine.model.training else out)(engine)


def block_in_evaluation(engine: Engine) -> None:
    """One block stays in evaluation mode."""
    block = engine.model.get_submodule("blocks.1")
    block.eval()
    block.train = lambda mode=True: block  # type: ignore[method-assign]


def hooked(path: str) -> Any:
    """Whether a module has a hook."""

    def shows(seen: Seen) -> bool:
        module = seen.model.get_submodule(path)
        return bool(module._forward_hooks) or bool(module._forward_pre_hooks)

    return shows


FAULTS: list[Fault] = [
    fault("residual connection missing", "model_differs", r"blocks\.1$", no_residual, hooked("blocks.1")),
    fault(
        "head not tied",
        "model_differs",
        "unembed",
        untied,
        lambda seen: seen.model.unembed.weight is not seen.model.embed.weight,
        make=altered(untied, model=gpt(tied=True), **SHORT),
    ),
    fault(
        "matrix three times too large",
        "model_differs",
        r"blocks\.2\.feedforward\.up",
        scaled_at_the_start,
        lambda seen: (
            float(seen.model.get_parameter("blocks.2.feedforward.up.weight").detach().std())
            > 2 * float(seen.model.get_parameter("blocks.1.feedforward.up.weight").detach().std())
        ),
    ),
    fault(
        "head without output",
        "no_effect",
        r"blocks\.2\.attention.*head 1",
        one_head_zero,
        hooked("blocks.2.attention.mechanism"),
    ),
    fault(
        "columns masked",
        "foreign_writes",
        r"blocks\.1\.feedforward",
        masked_weights,
        hooked("blocks.1.feedforward.down"),
    ),
    fault(
        "half of a gradient detached",
        "wrong_derivative",
        r"blocks\.1\.attention",
        half_detached,
        hooked("blocks.1.attention"),
    ),
    fault("sixteen bits in one layer", "wrong_precision", r"blocks\.1", rounded, hooked("blocks.1.feedforward")),
    fault(
        "dropout replaced by nothing",
        "random_numbers",
        r"dropout",
        still_dropout,
        lambda seen: not any(isinstance(m, nn.Dropout) and m.p for m in seen.model.modules()),
        make=altered(still_dropout, model=gpt(dropout=0.2), **SHORT),
    ),
    fault(
        "dropout not scaled",
        "random_numbers",
        "drop",
        unscaled_dropout,
        hooked("drop"),
        make=altered(unscaled_dropout, model=gpt(dropout=0.2), **SHORT),
    ),
    fault(
        "block in evaluation mode",
        "wrong_mode",
        r"blocks\.1",
        block_in_evaluation,
        lambda seen: not seen.model.get_submodule("blocks.1").training,
        make=altered(block_in_evaluation, model=gpt(dropout=0.2), **SHORT),
    ),
]


def another_width(engine: Engine) -> None:
    """A feed-forward layer was replaced by a narrower one."""
    layer = engine.model.get_submodule("blocks.1.feedforward")
    layer.up, layer.down = (nn.Linear(*sizes, bias=False) for sizes in ((32, 48), (48, 32)))  # type: ignore[assignment]
    engine.optimizer = engine.experiment.train.optimizer.build(engine.model)


FAULTS.append(
    fault(
        "layer of another width",
        "model_differs",
        r"blocks\.1\.feedforward",
        another_width,
        lambda seen: seen.model.get_submodule("blocks.1.feedforward.up").weight.shape[0] == 48,
    )
)
