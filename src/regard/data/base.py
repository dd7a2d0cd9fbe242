"""The contract between data and everything above it.

Training, `prove`, `doctor`, the report and the commands use the classes of this file and nothing else of a dataset:

* ``DataConfig``  a choice of data in a config; ``build`` fetches and prepares it
* ``Data``        training batches by number, validation and test batches in order
* ``TextBatch``, ``PairBatch``, ``LabeledBatch``, ``ArrayBatch``, ``ImageBatch``, ``ImageTextBatch``, ``GraphBatch``,
  ``PreferenceBatch``  what tasks and models consume

A dataset subclasses ``Data``, implements ``batch`` and ``validation_batches``, and sets the attributes that differ from
their defaults. Batches are named tuples of tensors: ``TextBatch`` or ``PairBatch``, or any other that the task of the
experiment reads. Only ``TextData`` and ``PairData`` have more, such as overlapping windows or the
sentences as text: code that needs it checks with ``isinstance``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from regard.config import Choice
from regard.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from regard.attention import AnySlots
    from regard.data.chats.template import ChatFormat
    from regard.data.tokenizers import Tokenizer
    from regard.models import ModelConfig

IGNORE_INDEX = -1  # a target with this value does not count: padding, or a prompt that is not to be learned


class Specials(NamedTuple):
    """Token ids after the tokenizer's own, for sequence-to-sequence data."""

    pad: int
    begin: int
    end: int

    @classmethod
    def after(cls, size: int) -> Specials:
        """The special tokens for a tokenizer of ``size`` tokens.

        >>> Specials.after(256)
        Specials(pad=256, begin=257, end=258)
        """
        return cls(size, size + 1, size + 2)


class TextBatch(NamedTuple):
    """Windows of text, and the next token of every position."""

    inputs: Tensor  # [B, N] int64
    targets: Tensor  # [B, N] int64; IGNORE_INDEX: does not count
    #: Padding or packing; None: unpadded rows. With consecutive order, None: rows that continue the previous batch.
    slots: AnySlots | None = None
    words: Tensor | None = None  # [B, N] int64: the number of each token's word in its row, for whole-word masking


class PairBatch(NamedTuple):
    """Sentences and their translations. Padding comes last in a row, where a causal decoder does not see it."""

    source: Tensor  # [B, S] int64; each row ends with the end token, then padding
    source_lengths: Tensor  # [B] int64, the end token included
    inputs: Tensor  # [B, T] int64: the begin token, then the translation
    targets: Tensor  # [B, T] int64: the translation, then the end token; IGNORE_INDEX: does not count


class LabeledBatch(NamedTuple):
    """Labelled texts."""

    inputs: Tensor  # [B, N] int64
    targets: Tensor  # [B, 1] the class, [B, N] a tag for each token, or [B, 2] the ends of an answer; IGNORE_INDEX
    slots: AnySlots  # the padding
    types: Tensor  # [B, N] int64: 1 in the second text of a pair
    #: [B] int64: the text of each row, if rows are windows of fewer texts; `targets` are then those of the texts.
    texts: Tensor | None = None


class ArrayBatch(NamedTuple):
    """Arrays with targets: sounds, time series, whatever an ``ArrayEncoder`` reads."""

    inputs: Tensor  # [B, ...] float32
    targets: Tensor  # [B, 1] int64, the class, or what the task predicts; IGNORE_INDEX: does not count
    lengths: Tensor | None = None  # [B] int64: the part of each array that is not padding; None: all of it

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What the model is called with."""
        return (self.inputs,) if self.lengths is None else (self.inputs, self.lengths)


class ImageBatch(NamedTuple):
    """Labelled images."""

    inputs: Tensor  # [B, M, Y, X] float32, from -1 to 1: M channels, Y rows, X columns
    targets: Tensor  # [B, 1] int64, the class; IGNORE_INDEX: does not count
    others: Tensor | None = None  # [B, 1] int64: with mixup, the class of the image that was mixed in
    weights: Tensor | None = None  # [B]: with mixup, the weight of the first class

    @property
    def arguments(self) -> tuple[Tensor]:
        """What the model is called with."""
        return (self.inputs,)


class ImageTextBatch(NamedTuple):
    """Images with texts about them. In evaluation, row by row the candidates of a search, with prompts for classes."""

    inputs: Tensor  # [B, M, Y, X] float32, from -1 to 1
    targets: Tensor  # [B, 1] int64, the class; IGNORE_INDEX: the row is a candidate, but does not count
    tokens: Tensor | None = None  # [B, T] int64, the text of each image; padding comes last
    lengths: Tensor | None = None  # [B] int64
    prompts: Tensor | None = None  # [P, T] int64: texts that stand for classes; without these, hard negatives
    prompt_lengths: Tensor | None = None  # [P] int64
    prompt_classes: Tensor | None = None  # [P] int64
    names: tuple[str, ...] = ()  # of the classes of the prompts, by number
    language: int = 0  # the number of the language of these texts

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What the model is called with: images alone, if there are no texts."""
        return (
            (self.inputs,) if self.tokens is None or self.lengths is None else (self.inputs, self.tokens, self.lengths)
        )


class GraphBatch(NamedTuple):
    """Graphs of nodes with edges between them. What is padding in a shorter graph is -1."""

    inputs: Tensor  # [B, N, F] float32: the numbers that describe each node
    targets: Tensor  # [B, N] the class of each node, [B, 1] of a graph or [B, 1] float32 its value; IGNORE_INDEX, NaN
    nodes: Tensor  # [B, N] int64: the kind of each node
    edges: Tensor  # [B, E, 3] int64: a node, another one that it sees, and the kind of the edge
    queries: Tensor | None = None  # [B, Q, 2] int64: a node and a relation; the targets [B, Q] are nodes
    known: Tensor | None = None  # [B, Q, N] bool: further nodes that are right, left out of the ranks

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What the model is called with."""
        given = (self.inputs, self.nodes, self.edges)
        return given if self.queries is None else (*given, self.queries)


class PreferenceBatch(NamedTuple):
    """Two answers for each prompt: rows 2i and 2i + 1 are the preferred and the rejected one. Padding comes last."""

    inputs: Tensor  # [2B, N] int64
    targets: Tensor  # [2B, N] int64; IGNORE_INDEX: of the prompt, or padding
    reference: Tensor  # [2B], the log-probability of each answer by the model before tuning


#: What the tasks of this package take; parts from outside may define others.
Batch = TextBatch | PairBatch | LabeledBatch | ArrayBatch | ImageBatch | ImageTextBatch | GraphBatch | PreferenceBatch


class Example(NamedTuple):
    """One input for a prediction."""

    name: str  # of its file, or where it is in the data
    batch: Any  # of one row
    given: str | None = None  # the right answer, if it is known
    parts: tuple[str, ...] = ()  # the names of its parts for people; default: those of the model


B = TypeVar("B", covariant=True)


class Data(ABC, Generic[B]):
    """Batches of type ``B`` for training and evaluation."""

    name: str = "the data"  # for messages
    sha256: str | None = None  # of the content; `regard resume` refuses data with another one
    vocabulary: int | None = None  # number of token ids, which the model's config takes over; None: it keeps its own
    shape: tuple[int, ...] | None = None  # of one array, such as channels, rows and columns; None: the data are tokens
    tokenizer: Tokenizer | None = None  # saved with the run; None: the tokens are not text
    chat: ChatFormat | None = None  # saved with the run, if the data are conversations
    specials: Specials | None = None  # the ids that mark padding, begin and end; set for sequence-to-sequence data only
    dynamic_shapes: bool = False  # the shape differs from batch to batch
    smallest_batch: int = 1  # the least batch size: 1 row, or the tokens of the longest pair if a size counts tokens
    validation_count: int | None = None  # targets in the validation part; None: unknown
    test_count: int | None = 0  # targets in the test part; None: unknown

    @abstractmethod
    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> B:
        """Part ``rank`` of the ``world`` parts of one step's batch, each of ``size``.

        Processes and accumulated micro-batches are parts alike (see ``Experiment.batch``). A pure function of the
        arguments, the same on every machine.
        """

    @abstractmethod
    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The whole validation part, each target once over all ranks. Every rank gets the same number of batches."""

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The whole test part, in the same way. Default: no test part."""
        return iter(())

    def to(self, device: torch.device) -> None:
        """Prepare to make batches for this device, on it if that is faster. Default: batches are made on the CPU."""

    def epoch(self, size: int, world: int = 1) -> float:
        """Number of steps in which the training part is seen once. Default: infinite (unknown)."""
        return math.inf


class DataConfig(Choice):
    """Which data an experiment trains on."""

    batch: int  # the size of a micro-batch; a step has one for each process and each accumulation

    def with_chat(self, form: ChatFormat | None) -> Self:
        """With the chat format of the model that training starts from. Default: unchanged."""
        return self

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        """Inputs of ``model`` from a file or a folder of the user's own, for predictions."""
        raise UserError(f"files cannot be read as examples of the data {self.kind}; leave the file out")

    def with_source(self, source: str) -> Self:
        """The same form of data from another built-in source, or from a folder or file of the user's own."""
        raise UserError(f"the data {self.kind} has no other sources; leave --source out")

    def prompted(self, examples: list[Example], prompts: tuple[str, ...], tokenizer: Tokenizer) -> list[Example]:
        """The examples with texts of the user's own to choose from."""
        raise UserError("prompts are for a run that compares images with texts, such as regard train emoji-clip")

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        """An SVG of the batch's first array for `regard look`. Default: none.

        ``weights`` [R, N]: how much attention each of its parts gets, in the R rows that a model makes of it.
        """
        return None

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> Data[Any]:
        """Fetch and prepare the data for sequences of ``context`` tokens; reuse and fill the folder ``cache``.

        ``tokenizer`` is that of a pretrained model; it is given only where an experiment starts from one (``init``).
        """
        raise NotImplementedError
