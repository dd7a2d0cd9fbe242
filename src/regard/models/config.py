"""The contract of a model's config: sizes that every model has, and what data, tasks and `prove` ask it to change."""

from __future__ import annotations

from dataclasses import Field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

from regard.config import Choice
from regard.errors import UserError
from regard.nn.fused import install

if TYPE_CHECKING:
    from regard.models.base import Model

M = TypeVar("M", covariant=True)


class Builder(Protocol[M]):
    """A config that makes models of one type."""

    def check(self) -> None: ...

    def make(self) -> M: ...


class ReducedSizes(NamedTuple):
    """The sizes of a reduced model; smaller ones stay as they are."""

    context: int = 80
    width: int = 32
    layers: int = 2
    heads: int = 4
    buckets: int = 512


REDUCED = ReducedSizes()


class ModelConfig(Choice):
    """Which model an experiment trains. Every model config has these four sizes."""

    __dataclass_fields__: ClassVar[dict[str, Field]]  # every subclass is a frozen dataclass
    generates: ClassVar[bool] = True  # the model decodes; an encoder does not
    reads: ClassVar[str] = "text"  # or images, sounds, series, graphs; a vocabulary of 0: no text
    resizable: bool = False  # no weight depends on the size of the images
    vocabulary: int
    context: int
    layers: int
    width: int

    @property
    def tokenized(self) -> bool:
        """Whether the model's tokens are those of the run's tokenizer."""
        return self.vocabulary > 0

    def make(self) -> Model:
        """The model; the config has been checked."""
        raise NotImplementedError

    def reduced(self) -> Self:
        """The same parts at a size that `prove` checks in seconds. Override it to shrink further sizes."""
        sizes = {"context": REDUCED.context, "width": REDUCED.width, "layers": REDUCED.layers}
        own = self.__dataclass_fields__  # the context of an image model follows from other sizes
        return replace(self, **{name: min(getattr(self, name), size) for name, size in sizes.items() if name in own})

    def with_layers(self, layers: int) -> Self:
        """The same model with so many layers; unchanged if it has no such choice."""
        return replace(self, layers=layers) if "layers" in self.__dataclass_fields__ else self

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> ModelConfig:
        """The same model for these data: their number of token ids, or the shape of one array."""
        return self if vocabulary is None else replace(self, vocabulary=vocabulary)

    def with_dropout(self, dropout: float) -> Self:
        """The same model with this dropout, of attention too, wherever it has one."""
        names = self.__dataclass_fields__.keys() & {"dropout", "attention_dropout"}
        return replace(self, **dict.fromkeys(names, dropout))

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> ModelConfig:
        """The same model with a head for these classes; ``pool``: None is the model's own choice."""
        raise UserError(f"a {self.kind} has no head for classes of {self.reads}; choose another --model")

    def with_values(self, values: int) -> ModelConfig:
        """The same model with a head for so many numbers that describe an array, as in regression."""
        raise UserError(f"a {self.kind} has no head for numbers; choose another --model")

    def without_positions(self) -> ModelConfig | None:
        """The same model without its position encoding, for comparison; None if the model has no such choice."""
        return None

    def build(self: Builder[M]) -> M:
        """The model, with fresh weights from PyTorch's current random state."""
        try:
            self.check()
        except ValueError as problem:
            raise UserError(str(problem)) from problem
        from regard.models import base  # which imports this file

        model = self.make()
        if not isinstance(model, base.LanguageModel | base.Encoder | base.ArrayEncoder | base.Seq2SeqModel):
            raise TypeError(
                f"{type(self).__name__}.make returned a {type(model).__name__}; return a LanguageModel, an Encoder, an "
                "ArrayEncoder or a Seq2SeqModel (regard.models.base)"
            )
        install(model)
        return model
