"""Which parameters are trained: all, the head alone, or low-rank adapters beside frozen matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from regard.config import Choice, option
from regard.errors import UserError
from regard.models import Encoder, Model
from regard.nn.lora import LowRankAdapter, install_lora
from regard.nn.quantized import Int4Config, QuantizationConfig

#: What is new in a model that starts from another: its head, or the maps of two towers into their space.
HEAD = ("unembed", "transform", "unembed_image", "unembed_text", "log_scale")


class AdaptConfig(Choice):
    """Which parameters of a model are trained."""

    @property
    def freezes(self) -> bool:
        """Whether weights stay as they are at the start, so that they have to be those of a trained model."""
        return False

    def apply(self, model: Model) -> None:
        """Freeze what is not trained and put the adapters in, in place. Default: everything is trained."""

    def rates(self, model: Model) -> dict[nn.Parameter, float]:
        """A factor of the learning rate for each parameter that has one; the others have 1."""
        return {}


@dataclass(frozen=True)
class FullConfig(AdaptConfig, kind="full"):
    """All parameters."""


@dataclass(frozen=True)
class LayerwiseConfig(AdaptConfig, kind="layerwise"):
    """Each block learns slower than the next one above it (Howard and Ruder 2018, sec. 3.2), the lowest perhaps not."""

    decay: float = option(0.9, "the learning rate of a block, as a share of that of the block above it")
    head: float = option(1.0, "the learning rate of the head, as a multiple of that of the optimizer")
    freeze: int = option(0, "freeze the lowest layers, so many: 1 the embeddings, 2 the first block too, and so on")

    def check(self) -> None:
        """Refuse impossible rates."""
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}")
        _check_head(self.head)
        if self.freeze < 0:
            raise ValueError(f"freeze must be at least 0, not {self.freeze}")

    @property
    def freezes(self) -> bool:
        return self.freeze > 0

    def apply(self, model: Model) -> None:
        most = len(model.blocks) + 1
        if self.freeze > most:
            raise UserError(f"--train.adapt.freeze {self.freeze} freezes the head; choose {most} or less")
        for parameter, depth in depths(model).items():
            parameter.requires_grad_(depth >= self.freeze)

    def rates(self, model: Model) -> dict[nn.Parameter, float]:
        top = len(model.blocks) + 1
        found = {parameter: self.decay ** (top - depth) for parameter, depth in depths(model).items()}
        return found | dict.fromkeys(head_parameters(model), self.head)


@dataclass(frozen=True)
class FrozenConfig(AdaptConfig, kind="frozen"):
    """Some modules only, by default the output head; everything else is frozen."""

    trained: tuple[str, ...] = option(HEAD, "names of modules or weights that are trained; all others are frozen")
    head: float = option(1.0, "the learning rate of the head, as a multiple of that of the optimizer")

    def check(self) -> None:
        """Refuse impossible rates."""
        _check_head(self.head)

    @property
    def freezes(self) -> bool:
        return True

    def apply(self, model: Model) -> None:
        _freeze_all_but(model, self.trained)

    def rates(self, model: Model) -> dict[nn.Parameter, float]:
        return {} if self.head == 1 else dict.fromkeys(head_parameters(model), self.head)


@dataclass(frozen=True)
class LoRAConfig(AdaptConfig, kind="lora"):
    """Low-rank adapters beside frozen matrices (Hu et al. 2021), and the head of classes, which is new, in full."""

    rank: int = option(8, "rank of the adapters")
    alpha: float = option(16.0, "their products are multiplied by alpha / rank")
    dropout: float = option(0.0, "dropout on the input of the adapters")
    targets: tuple[str, ...] = option(
        ("attention", "cross", "feedforward"), "parts of the names of the linear layers to adapt, such as qkv or down"
    )
    trained: tuple[str, ...] | None = option(
        None, "modules that are trained in full besides (default: an encoder's head of classes or spans)"
    )

    @property
    def base(self) -> QuantizationConfig | None:
        """How the frozen matrices are stored; None: as they are."""
        return None

    def check(self) -> None:
        """Refuse impossible sizes."""
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, not {self.rank}")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"alpha must be a number above 0, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")

    def apply(self, model: Model) -> None:
        new_head = HEAD if isinstance(model, Encoder) and not model.predicts_tokens else ()
        _freeze_all_but(model, new_head if self.trained is None else self.trained, some=self.trained is None)
        layers = install_lora(model, self.targets, self.rank, self.alpha, self.dropout, self.base)
        if not any(layer.parameters for layer in layers):
            known = sorted({layer.name.rpartition(".")[2] for layer in layers if layer.reason == "no target"})
            there = f"its layers are called {', '.join(known)}" if known else "it has no layer that can be adapted"
            raise UserError(
                f"--train.adapt.targets {','.join(self.targets)} fits no linear layer of the model; {there}"
            )


@dataclass(frozen=True)
class QLoRAConfig(LoRAConfig, kind="qlora"):
    """Low-rank adapters beside frozen matrices that are stored in 4 or 8 bits (Dettmers et al. 2023)."""

    quantization: QuantizationConfig = field(
        default_factory=Int4Config, metadata={"help": "how the frozen matrices are stored"}
    )

    @property
    def base(self) -> QuantizationConfig:
        return self.quantization


def _freeze_all_but(model: nn.Module, names: Sequence[str], some: bool = False) -> None:
    """Freeze every parameter outside the modules of these names.

    ``some``: a name that the model does not have is no error.
    """
    model.requires_grad_(False)
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if name in names or name.rpartition(".")[2] in names:
            part.requires_grad_(True)
    if names and not some and not any(parameter.requires_grad for parameter in model.parameters()):
        there = ", ".join(name for name, _ in model.named_children())
        raise UserError(f"--train.adapt.trained {','.join(names)}: the model has no such module; it has {there}")


def head_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of what is new in a model that starts from another."""
    return [parameter for name, parameter in model.named_parameters() if name.partition(".")[0] in HEAD]


def _check_head(head: float) -> None:
    if not 0 < head < float("inf"):
        raise ValueError(f"head must be a number above 0, not {head}")


def depths(model: Model) -> dict[nn.Parameter, int]:
    """0 for the embeddings, 1, 2 ... for the blocks, and one more for the last norm and the head."""
    found = dict.fromkeys(model.parameters(), 0)
    tops = [module for name, module in model.named_children() if name in (*HEAD, "norm")]
    found |= {parameter: len(model.blocks) + 1 for module in tops for parameter in module.parameters()}
    for number, block in enumerate(model.blocks, start=1):
        found |= dict.fromkeys(block.parameters(), number)
    return found


def frozen_names(model: nn.Module) -> set[str]:
    """The names in the model's state of the parameters that are not trained, and of quantized ones."""
    frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    for name, module in model.named_modules():
        if isinstance(module, LowRankAdapter):
            frozen |= {f"{name}.{own}" for own, _ in module.named_buffers(recurse=False)}
    return frozen
