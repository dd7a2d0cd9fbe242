"""The contract: everything above models uses these classes and nothing else of a model. A model subclasses one of

* ``LanguageModel``  tokens [B, N] to logits [B, N, V], causal, decodable token by token with a ``State``
* ``Encoder``        tokens [B, N] to features [B, N, C], bidirectional
* ``ArrayEncoder``   images, sounds, time series, graphs: arrays to features [B, N, C] of their parts
* ``PairEncoder``    two of them: an array and a text to vectors of one space
* ``Seq2SeqModel``   source [B, S, ...] and target inputs [B, T] to logits [B, T, V], decodable with a ``Seq2SeqState``

and declares itself by the class attributes of ``Model``. ``tests/laws/test_models.py`` tests every registered model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention import AnySlots, Bias, Mask, Mechanism, ModuleProperties, Range
from regard.models.config import ModelConfig
from regard.models.state import Seq2SeqState, State
from regard.nn.feedforward import FeedForwardLayer

T = TypeVar("T")


class Model(nn.Module, ModuleProperties):
    """Base class of all models. A subclass sets the attributes below and calls ``super().__init__(config)``."""

    config: ModelConfig
    norm: nn.Module  # the last norm, between the blocks and the head; required with ``residual_blocks``
    unembed: nn.Linear  # the output layer; an identity in an encoder that ends with its features
    blocks: nn.ModuleList | list[nn.Module]  # the layers, in order: the units of FSDP, checkpointing, Muon and `look`

    compilable: bool = True  # ``torch.compile(fullgraph=True)`` can trace a training step
    # Of ``ModuleProperties``, graphable: ``step`` can be captured in a CUDA graph; steppable: it supports the masks.
    positional: bool = True  # the output depends on the order of the inputs
    carries_state: bool = False  # in training, a batch continues from the state of the previous one
    limit: int | None = None  # the longest input that the position encoding supports; None: unlimited
    separate: tuple[str, ...] = ()  # parts that ``features`` and ``head`` do not use; terms of the task train them
    masks: Sequence[Mask] = ()  # the distinct attention masks; () for models without attention

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False  # recompute each block in the backward pass instead of storing its activations
        #: By name: which slices of a parameter this rank holds (``regard.parallel.pieces.Cut``); the others are whole.
        self.cuts: dict[str, Any] = {}
        self.micro_batches = 1  # per update, of other rows each: a model that carries a state keeps one for each

    def head(self, x: Tensor) -> Tensor:
        """Features [B, N, C] to logits [B, N, V]. Default: ``unembed``."""
        return self.unembed(x)

    def run_block(self, block: Callable[..., T], *inputs: object) -> T:
        """``block(*inputs)``; with ``checkpointing``, its activations are recomputed in the backward pass."""
        if self.checkpointing and self.training:
            return cast(T, checkpoint(block, *inputs, use_reentrant=False))
        return block(*inputs)

    @property
    def decodable(self) -> bool:
        """Whether ``step`` gives the same logits as ``forward``: the model and its modules are ``steppable``."""
        return self.config.generates and all(
            module.steppable for module in self.modules() if isinstance(module, ModuleProperties)
        )

    def mechanisms(self) -> list[tuple[str, Mechanism]]:
        """Every attention mechanism of ``features`` and ``head`` with its module name."""
        modules = self.named_modules()
        return [
            (name, module)
            for name, module in modules
            if isinstance(module, Mechanism) and name.partition(".")[0] not in self.separate
        ]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the blocks, which Muon optimizes: no embeddings, heads, norms or bias tables."""
        biases = [module for module in self.modules() if isinstance(module, Bias | nn.Embedding)]
        tables = {parameter for module in biases for parameter in module.parameters()}
        inside = dict.fromkeys(parameter for block in self.blocks for parameter in block.parameters())
        return [parameter for parameter in inside if parameter.ndim == 2 and parameter not in tables]

    @property
    def inactive_parameters(self) -> int:
        """Weights that one token does not use: those of the experts it is not routed to."""
        return sum(module.inactive_parameters for module in self.modules() if isinstance(module, FeedForwardLayer))

    @property
    def layer_masks(self) -> list[Mask]:
        """The mask of each attention that one token passes through. Default: all mechanisms have the first mask."""
        return [self.masks[0] for _ in self.mechanisms() if self.masks]

    @property
    def cache_per_token(self) -> int:
        """How many numbers the decoding state grows by for each token. Default: none, the state has a fixed size."""
        return 0

    @property
    def text_reader(self) -> Model:
        """The part that reads texts: the model itself, or one of two towers."""
        return self

    def residual_blocks(self) -> list[nn.Module]:
        """The blocks between the embedding and ``self.norm``, in order of execution, for the logit lens and patching.

        Each maps a residual stream [B, N, C] that ``norm`` and ``head`` can read. Default: none, so no such views.
        """
        return []

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides ``forward`` that use parameters of their module; FSDP gathers the weights around each."""
        return [(self, "features")]

    def prepare_load(self, tensors: Mapping[str, Sized]) -> None:
        """Resize buffers whose shape depends on the checkpoint, before its tensors are loaded. Default: none."""


class LanguageModel(Model):
    """Tokens [B, N] to logits [B, N, V], each from the tokens up to its own."""

    def forward(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        return self.head(self.features(tokens, slots))

    @abstractmethod
    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Everything but the head: [B, N, C]. ``slots`` describes padding or packing. Default: one unpadded row."""

    @abstractmethod
    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty state for ``batch`` rows of up to ``capacity`` tokens. ``fixed``: every step has the same shapes."""

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Consume tokens [B, T] after those in ``state``; return logits [B, T, V] and the state, updated in place.

        ``lengths`` [B] is the number of real tokens per row; the others are ignored. ``last``: only the logits after
        each row's last real token, [B, 1, V].
        """
        x, state = self.consume(tokens, state, lengths)
        if last:  # a head over a large vocabulary costs as much as several blocks
            ends = None if lengths is None else (torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0))
            x = x[:, -1:] if ends is None else x[ends][:, None]
        return self.head(x), state

    def consume(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """``step`` without the head: features [B, T, C] and the state. A model defines this, or ``step`` itself."""
        raise NotImplementedError


class Encoder(Model):
    """Tokens [B, N] to features [B, N, C], each from all tokens of its row."""

    predicts_tokens: bool = True  # ``head`` gives logits over the vocabulary, rather than classes or spans
    token_types: int = 0  # 0: ``types`` must be None

    @property
    @abstractmethod
    def mask_token(self) -> int:
        """The id of the token that replaces masked ones."""

    @abstractmethod
    def features(self, tokens: Tensor, slots: AnySlots | None = None, types: Tensor | None = None) -> Tensor:
        """Features [B, N, C] of every token. ``slots``: padding or packing; ``types``: token types [B, N] (0)."""

    def forward(self, tokens: Tensor, slots: AnySlots | None = None, types: Tensor | None = None) -> Tensor:
        return self.head(self.features(tokens, slots, types))


class ArrayEncoder(Model):
    """Arrays, such as images, to features [B, N, C] of the parts that they are cut into, each from the whole array.

    ``inputs`` are the arrays of a batch, each with the batch first: its ``arguments`` (``regard.data.base``).
    """

    before: int = 0  # features before those of the parts: 1 with a class token
    fixed_size: bool = False  # it reads arrays of ``config.context`` parts only
    summarizes: bool = False  # features are those of latents, as many for every array, rather than of its parts

    @abstractmethod
    def features(self, *inputs: Tensor) -> Tensor:
        """Features [B, N, C]: those of ``before`` tokens, then of the parts in order."""

    @abstractmethod
    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Features [B, N, C] to what the head reads: one vector per array, [B, C], or all of them."""

    @abstractmethod
    def inputs_of(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Arrays of N parts for ``tokens`` [B, N], equal parts for equal tokens: `prove` tests its claims on them."""

    @abstractmethod
    def places(self, *inputs: Tensor) -> list[str]:
        """A name for each of the N features of the first array, for people."""

    def slots(self, x: Tensor, *inputs: Tensor) -> AnySlots:
        """Which of the features ``x`` [B, N, C] are padding. Default: none."""
        return Range(x.shape[1])

    def links(self, *inputs: Tensor) -> Tensor | None:
        """Pairs of features [E, 2] of the first array that are linked, for a drawing. Default: there are none."""
        return None

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.pooled(self.features(*inputs), *inputs))


class PairEncoder(ArrayEncoder):
    """Two towers: an array and a text as vectors of one space. Its ``inputs`` are arrays, then tokens and lengths."""

    image: ArrayEncoder
    text: Encoder

    @property
    def text_reader(self) -> Encoder:
        return self.text

    @abstractmethod
    def text_vectors(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Vectors [B, D] of texts, as ``head`` gives them; tokens [B, T], lengths [B]."""


class Seq2SeqModel(Model):
    """Source [B, S] and target inputs [B, T] to logits [B, T, V] (teacher forcing)."""

    source_vocabulary: int  # number of source token ids; 0: the source is not tokens

    def source_of(self, tokens: Tensor) -> Tensor:
        """A source of parts for ``tokens`` [B, S], equal parts for equal tokens: `prove` tests its claims on them."""
        return tokens

    def forward(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        return self.head(self.features(inputs, source, source_lengths))

    @abstractmethod
    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Everything but the head: [B, T, C]. Target padding comes last, where a causal decoder does not see it."""

    @abstractmethod
    def start(
        self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1
    ) -> Seq2SeqState:
        """Encode ``batch`` sources; return an empty state for ``beams`` rows each of up to ``capacity`` tokens."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Consume tokens [B * beams, T]; return logits [B * beams, T, V] and the new state."""
