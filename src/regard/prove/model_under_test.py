"""The model that `certify` tests, with what belongs to it, in one form for models of this library and any other."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from inspect import getclosurevars
from types import FunctionType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from regard.attention import AnySlots, ModuleProperties, Padded, Range
from regard.data import Data, Tokenizer
from regard.errors import UserError
from regard.models.base import ArrayEncoder, Encoder, LanguageModel, Model, Seq2SeqModel
from regard.tasks import Task

Forward = Callable[..., Tensor]  # tokens [B, N] to logits [B, N, V]
PARTS = 64  # token ids for a model of arrays
SHORT, LONG = 24, 160  # tokens of the test sequences; the longer ones exceed the blocks of fast paths
Effort = Literal["quick", "full"]
SEED = 7
SOURCES = 12  # source sequences for a sequence-to-sequence model


class Stepper(Protocol):
    """Decodes in pieces, as ``LanguageModel`` and ``Seq2SeqModel`` do."""

    @property
    def start(self) -> Callable[..., Any]: ...  # (batch, capacity) to an empty state

    @property
    def step(self) -> Callable[..., tuple[Tensor, Any]]: ...  # (tokens, state) to logits and state


@dataclass
class ModelUnderTest:
    """A model of this library, or the forward pass of another one, and what belongs to it."""

    forward: Model | Forward
    vocabulary: int = 0  # number of token ids; 0: that of the model's config
    length: int = 0  # of the test sequences; 0: 24, or the model's context if that is shorter
    padded: Callable[[Tensor, Tensor], Tensor] | None = None  # (tokens, lengths) to logits, with padding behind
    stepper: Stepper | None = None  # default: the model itself, if it decodes
    variants: Mapping[str, Forward] = field(default_factory=dict)  # further code paths to the same logits, by name
    causal: bool = True  # no logit may depend on a later token
    positional: bool | None = None  # the order of tokens matters; None: as the model declares
    tokenizer: Tokenizer | None = None
    task: Task | None = None
    data: Data | None = None
    about: str = ""  # what is tested, for the certificate
    effort: Effort = "quick"  # how many cases of a sweep are tested
    seed: int = 0  # of the sweep's draws

    def __post_init__(self) -> None:
        if self.model is not None:
            self.vocabulary = self.vocabulary or (PARTS if self.reads_arrays else self.model.config.vocabulary)
            fixed = isinstance(self.model, ArrayEncoder) and self.model.fixed_size
            self.length = self._context if fixed else self.length or min(SHORT, self._context)
            self.causal = self.causal and not isinstance(self.model, Encoder | ArrayEncoder)
            if self.positional is None:
                self.positional = self.model.positional
            if self.stepper is None and isinstance(self.model, LanguageModel | Seq2SeqModel):
                self.stepper = self.model
        self.length = self.length or SHORT
        if not self.vocabulary:
            raise UserError("certify needs the number of token ids; give vocabulary=...")
        if self.length < 4 or self.vocabulary < 2:
            raise UserError(f"{self.length} tokens out of {self.vocabulary} ids are too few; give at least 4 out of 2")

    @property
    def model(self) -> Model | None:
        """The model, if it is one of this library."""
        return self.forward if isinstance(self.forward, Model) else None

    @property
    def _context(self) -> int:
        """The length of the sequences in training; of arrays, the number of their parts."""
        assert self.model is not None
        return self.model.config.context - (self.model.before if isinstance(self.model, ArrayEncoder) else 0)

    @cached_property
    def module(self) -> nn.Module | None:
        """The module behind the forward pass, whose submodules are inspected; None for a plain function."""
        return next(iter(_modules_of(self.forward)), None)

    @cached_property
    def modules(self) -> list[nn.Module]:
        """Every module whose weights decide the logits: also those in the closure of a function."""
        ways = (self.forward, self.padded, self.stepper, *self.variants.values())
        found = [module for way in ways for module in (*_modules_of(way), *_closure_of(way))]
        return list(dict.fromkeys(found))

    def _weight(self) -> Tensor | None:
        weights = (weight for module in self.modules for weight in module.parameters())
        return next((weight for weight in weights if weight.is_floating_point()), None)

    @cached_property
    def device(self) -> torch.device:
        weight = self._weight()
        return torch.device("cpu") if weight is None else weight.device

    @cached_property
    def dtype(self) -> torch.dtype:
        """The number format of the weights as given."""
        weight = self._weight()
        return torch.float32 if weight is None else weight.dtype

    @property
    def seq2seq(self) -> Seq2SeqModel | None:
        """The model, if it is a sequence-to-sequence model."""
        return self.model if isinstance(self.model, Seq2SeqModel) else None

    @property
    def token_ids(self) -> int:
        """The number of token ids of the model's texts, which may not be those that claims are tested on."""
        return self.model.config.vocabulary if self.model is not None and self.reads_arrays else self.vocabulary

    @property
    def reads_arrays(self) -> bool:
        """The model reads arrays, such as images; each of the test tokens stands for a part, such as a patch."""
        return isinstance(self.model, ArrayEncoder)

    @property
    def takes_slots(self) -> bool:
        """The model takes padded and packed batches."""
        return isinstance(self.model, LanguageModel | Encoder)

    @cached_property
    def sources(self) -> tuple[Tensor, Tensor]:
        """Numbers of source parts [12, S] and lengths [12] for a sequence-to-sequence model."""
        assert self.seq2seq is not None
        numbers = self.seq2seq.source_vocabulary
        if not numbers and type(self.seq2seq).source_of is Seq2SeqModel.source_of:
            raise UserError("claims are tested on random tokens, but this model reads sound; prove another one")
        generator = torch.Generator().manual_seed(SEED + 1)
        longest = max(2, min(9, self.seq2seq.config.context))
        tokens = torch.randint(numbers or PARTS, (SOURCES, longest), generator=generator)
        lengths = torch.randint(2, longest + 1, (SOURCES,), generator=generator)
        return tokens.to(self.device), lengths.to(self.device)

    def source(self, rows: Tensor, padding: int = 0) -> tuple[Tensor, Tensor]:
        """Parts and lengths of some sources, with ``padding`` more positions than the longest of them needs."""
        tokens, lengths = (x[rows % SOURCES] for x in self.sources)
        tokens = tokens[:, : int(lengths.max())]
        assert self.seq2seq is not None
        return self.seq2seq.source_of(torch.cat((tokens, tokens[:, -1:].expand(-1, padding)), dim=1)), lengths

    @cached_property
    def long(self) -> int:
        """The longest test sequence."""
        if self.model is None or self.seq2seq is not None:
            return self.length
        return max(self.length, min(LONG, self._context))

    def tokens(self, rows: int, length: int | None = None, seed: int = SEED) -> Tensor:
        """Random tokens [rows, length]."""
        generator = torch.Generator().manual_seed(seed)
        shape = (rows, self.length if length is None else length)
        return torch.randint(self.vocabulary, shape, generator=generator).to(self.device)

    def other_tokens(self, tokens: Tensor, seed: int = SEED) -> Tensor:
        """A different random token for each of ``tokens``."""
        generator = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, max(2, self.vocabulary), tokens.shape, generator=generator).to(tokens.device)
        return (tokens + shift) % self.vocabulary

    def arguments(self, tokens: Tensor, rows: Tensor | None = None, padding: int = 0) -> tuple[Tensor, ...]:
        """The positional arguments of the model; ``rows`` are the sources of a sequence-to-sequence model."""
        if isinstance(self.model, ArrayEncoder):
            return self.model.inputs_of(tokens)
        if self.seq2seq is None:
            return (tokens,)
        rows = torch.arange(len(tokens), device=tokens.device) if rows is None else rows
        return (tokens, *self.source(rows, padding))

    def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] of unpadded rows."""
        model = self.model
        if self.takes_slots and model is not None and model.training:  # rows start here, even if it carries its state
            return self.outputs(tokens, Range(tokens.shape[1]))
        if isinstance(model, Encoder | ArrayEncoder) and self.forward is model:
            return self.outputs(tokens, None)
        return self.forward(*self.arguments(tokens, rows))

    def outputs(self, tokens: Tensor, slots: AnySlots | None) -> Tensor:
        """Logits [B, N, V]. A head for whole rows is applied to each token, so that claims about tokens apply."""
        if isinstance(self.model, Encoder):
            return self.model.head(self.model.features(tokens, slots))
        if isinstance(self.model, ArrayEncoder):
            x = self.model.features(*self.arguments(tokens))
            parts = tokens.shape[1]  # the mean of latents counts as that of every part
            x = x.mean(1, keepdim=True).expand(-1, parts, -1) if self.model.summarizes else x[:, self.model.before :]
            return self.model.head(x)
        assert self.model is not None
        return self.model(tokens, slots)

    @property
    def paths(self) -> dict[str, Forward]:
        """The code paths to the logits, by a suffix for messages."""
        return {f", {name}": forward for name, forward in self.variants.items()} or {"": self}

    @property
    def pads(self) -> bool:
        """Rows can be padded: the model takes lengths, or no token sees what follows it."""
        return self.padded is not None or (self.model is not None and not self.reads_arrays) or self.causal

    def with_padding(self, tokens: Tensor, lengths: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of rows whose first ``lengths`` tokens are real."""
        if self.padded is not None:
            return self.padded(tokens, lengths)
        if self.model is not None and self.takes_slots:
            return self.outputs(tokens, Padded(lengths, tokens.shape[1]))
        return self.forward(*self.arguments(tokens, rows, padding=3))

    def decode(self, tokens: Tensor, pieces: list[int], **settings: int) -> Tensor:
        """Logits of ``tokens``, decoded in pieces of these lengths; ``beams`` rows share each source."""
        assert self.stepper is not None
        batch, sources = len(tokens) // settings.get("beams", 1), {}
        if self.seq2seq is not None:
            source, lengths = self.source(torch.arange(batch, device=self.device))
            sources = {"source": source, "source_lengths": lengths}
        state, found = self.stepper.start(batch, sum(pieces), **sources, **settings), []
        for piece in tokens.split(pieces, dim=1):
            logits, state = self.stepper.step(piece, state)
            found.append(logits)
        return torch.cat(found, dim=1)

    def _declaring(self, declares: Callable[[ModuleProperties], bool]) -> list[str]:
        parts = () if self.module is None else self.module.named_modules()
        found = [(name, part) for name, part in parts if isinstance(part, ModuleProperties) and declares(part)]
        return [f"{name or 'the model'} ({type(part).__name__})" for name, part in found]

    @cached_property
    def discontinuous(self) -> list[str]:
        """The modules that declare to be discontinuous."""
        return self._declaring(lambda part: part.discontinuous)

    @cached_property
    def not_steppable(self) -> list[str]:
        """The modules that declare not to decode token by token."""
        return self._declaring(lambda part: not part.steppable)

    @cached_property
    def not_batch_invariant(self) -> list[str]:
        """The modules that declare a dependence on the other rows of a batch."""
        return self._declaring(lambda part: not part.batch_invariant)


def _modules_of(way: object) -> list[nn.Module]:
    """The module behind a forward pass: itself, the object of a method, or what another object wraps."""
    candidates = (way, getattr(way, "__self__", None), getattr(way, "module", None))
    return [one for one in candidates if isinstance(one, nn.Module)][:1]


def _closure_of(way: object) -> list[nn.Module]:
    """The modules that a function refers to."""
    if not isinstance(way, FunctionType):
        return []
    variables = getclosurevars(way)
    values = (*variables.nonlocals.values(), *variables.globals.values())
    return [one for one in values if isinstance(one, nn.Module)]


@contextmanager
def training_mode(module: nn.Module | None, training: bool) -> Iterator[None]:
    """Put a module into training or evaluation mode; afterwards all attributes of its submodules are as before."""
    parts = () if module is None else module.modules()
    before = {part: {**vars(part), "_buffers": dict(part._buffers)} for part in parts}
    if module is not None:
        module.train(training)
    try:
        yield
    finally:
        for part, attributes in before.items():
            vars(part).update(attributes)


@contextmanager
def preserved(module: nn.Module | None) -> Iterator[None]:
    """Evaluation mode; afterwards modes, buffers, gradients and random states are as before."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), training_mode(module, False):
        buffers = {} if module is None else {x: x.clone() for x in module.buffers()}
        gradients = {} if module is None else {weight: weight.grad for weight in module.parameters()}
        try:
            yield
        finally:
            for x, values in buffers.items():
                x.copy_(values)
            for weight, gradient in gradients.items():
                weight.grad = gradient
