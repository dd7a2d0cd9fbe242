"""Batches of conversations and of preferences. The batch of a step is a pure function of (seed, step, rank)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Data, PreferenceBatch, TextBatch
from regard.data.chats.messages import Piece
from regard.data.chats.packing import pack, rows_in_order, rows_of_step
from regard.data.chats.template import ChatFormat
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

B = TypeVar("B")
STEP = 8  # lengths of rows are multiples of it


class EncodedChat(NamedTuple):
    """The tokens of a text; the targets are those of answers."""

    ids: NDArray[np.int64]  # [N]
    targets: NDArray[np.bool_]  # [N]; False for the first token, which is not predicted
    cut: bool  # it was longer


def encoded(tokenizer: Tokenizer, parts: Sequence[Piece], longest: int) -> EncodedChat:
    """The first ``longest`` tokens. Each piece is encoded by itself: so is a prompt when the model answers it."""
    pairs = [(tokenizer.encode(piece.text), piece.answer) for piece in parts if piece.text]
    ids = np.concatenate([some for some, _ in pairs]) if pairs else np.zeros(0, np.int64)
    targets = np.concatenate([np.full(len(some), answer) for some, answer in pairs]) if pairs else np.zeros(0, bool)
    targets[:1] = False
    return EncodedChat(ids[:longest], targets[:longest], len(ids) > longest)


def filled(inputs: NDArray[np.int64], targets: NDArray[np.int64], text: EncodedChat) -> None:
    """Write a text's tokens, and the next token of each where that is a target, into rows [N - 1]."""
    inputs[:] = text.ids[:-1]
    targets[:] = np.where(text.targets[1:], text.ids[1:], IGNORE_INDEX)


class MessagesPart(ABC, Generic[B]):
    """The examples of a part, by number."""

    size: int  # how many examples there are
    count: int  # how many targets, or pairs

    @abstractmethod
    def batch(self, numbers: NDArray[np.int64]) -> B:
        """The examples with these numbers; one that does not exist has no target."""


class ChatPart(MessagesPart[TextBatch]):
    """Conversations packed into rows of ``room`` tokens, which are the examples."""

    def __init__(self, texts: Sequence[EncodedChat], rows: list[list[int]], room: int):
        self.texts, self.rows, self.room = texts, rows, room
        self.size, self.count = len(rows), sum(int(text.targets.sum()) for text in texts)

    @classmethod
    def of(cls, texts: Sequence[EncodedChat], room: int) -> ChatPart:
        """Packed, best fit first."""
        return cls(texts, pack([len(text.ids) - 1 for text in texts], room), room)

    def batch(self, numbers: NDArray[np.int64]) -> TextBatch:
        """The rows with these numbers. No conversation sees another."""
        import torch  # not at the top: configs are read without torch

        from regard.attention import Packed

        inputs = np.zeros((len(numbers), self.room), np.int64)
        targets = np.full((len(numbers), self.room), IGNORE_INDEX, np.int64)
        documents = []
        for row, number in enumerate(numbers.tolist()):
            start = 0
            members = [self.texts[one] for one in self.rows[number]] if number < len(self.rows) else []
            for text in members:
                stop = start + len(text.ids) - 1
                filled(inputs[row, start:stop], targets[row, start:stop], text)
                start = stop
            documents.append([len(text.ids) - 1 for text in members] or [1])
        return TextBatch(torch.from_numpy(inputs), torch.from_numpy(targets), Packed.of(documents, self.room))


class PreferencePart(MessagesPart[PreferenceBatch]):
    """Pairs of texts: numbers 2i and 2i + 1 are the preferred and the rejected one of pair i."""

    def __init__(self, texts: Sequence[EncodedChat]):
        self.texts = texts
        self.size = self.count = len(texts) // 2
        #: The log-probability of each answer by the model before tuning, [2 * count]; None: not computed yet.
        self.reference: Tensor | None = None

    def batch(self, numbers: NDArray[np.int64]) -> PreferenceBatch:
        """The two texts of each pair, one after the other."""
        import torch  # not at the top: configs are read without torch

        rows = [row for number in numbers.tolist() for row in (2 * number, 2 * number + 1)]
        texts = [self.texts[row] if row < len(self.texts) else None for row in rows]
        width = max([STEP, *(-(-(len(text.ids) - 1) // STEP) * STEP for text in texts if text is not None)])
        inputs = np.zeros((len(rows), width), np.int64)
        targets = np.full((len(rows), width), IGNORE_INDEX, np.int64)
        for row, text in enumerate(texts):
            if text is not None:
                length = len(text.ids) - 1
                filled(inputs[row, :length], targets[row, :length], text)
        reference = torch.zeros(len(rows))
        if self.reference is not None:
            known = [place for place, row in enumerate(rows) if row < len(self.texts)]
            reference[known] = self.reference[[rows[place] for place in known]].float()
        return PreferenceBatch(torch.from_numpy(inputs), torch.from_numpy(targets), reference)


class MessagesData(Data[B]):
    """Conversations or preferences in two parts, with the tokenizer and the chat format of the tuned model."""

    tokenizer: Tokenizer
    vocabulary: int
    sha256: str
    chat: ChatFormat
    dynamic_shapes = True  # lengths differ, or where conversations begin

    def __init__(
        self,
        train: MessagesPart[B],
        validation: MessagesPart[B],
        tokenizer: Tokenizer,
        chat: ChatFormat,
        *,
        name: str,
        sha256: str,
    ) -> None:
        if not train.size:
            raise UserError(f"no example of {name} has an answer within the first tokens; raise --data.tokens")
        self.train, self.validation, self.validation_count = train, validation, validation.count
        self.tokenizer, self.vocabulary, self.chat = tokenizer, tokenizer.size, chat
        self.name, self.sha256 = name, sha256

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> B:
        """Part ``rank`` of the batch of a step: ``size`` examples."""
        return self.train.batch(rows_of_step(step, self.train.size, seed=seed, rank=rank, world=world, size=size))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The validation part."""
        for numbers in rows_in_order(self.validation.size, size, rank, world):
            yield self.validation.batch(numbers)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every example occurs once."""
        return self.train.size / (size * world)


class ChatData(MessagesData[TextBatch]):
    """Conversations."""


class PreferenceData(MessagesData[PreferenceBatch]):
    """Preferences."""

    train: PreferencePart
    validation: PreferencePart
