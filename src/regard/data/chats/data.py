"""Batches of conversations and of preferences. The batch of a step is a pure function of (seed, step, rank)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

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


class ChatPart:
    """Conversations packed into rows of ``room`` tokens."""

    def __init__(self, texts: Sequence[EncodedChat], rows: list[list[int]], room: int):
        self.texts, self.rows, self.room = texts, rows, room
        self.count = sum(int(text.targets.sum()) for text in texts)

    @classmethod
    def of(cls, texts: Sequence[EncodedChat], room: int) -> ChatPart:
        """Packed, best fit first."""
        return cls(texts, pack([len(text.ids) - 1 for text in texts], room), room)

    def batch(self, numbers: NDArray[np.int64]) -> TextBatch:
        """The rows with these numbers; one that does not exist has no target. No conversation sees another."""
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
                inputs[row, start:stop] = text.ids[:-1]
                targets[row, start:stop] = np.where(text.targets[1:], text.ids[1:], IGNORE_INDEX)
                start = stop
            documents.append([len(text.ids) - 1 for text in members] or [1])
        return TextBatch(torch.from_numpy(inputs), torch.from_numpy(targets), Packed.of(documents, self.room))


class MessagesData:
    """What the two kinds of data have in common: a chat format and the tokenizer of the tuned model."""

    tokenizer: Tokenizer
    vocabulary: int
    sha256: str
    chat: ChatFormat
    dynamic_shapes = True  # lengths differ, or where conversations begin

    def _describe(self, tokenizer: Tokenizer, chat: ChatFormat, name: str, sha256: str, examples: int) -> None:
        if not examples:
            raise UserError(f"no example of {name} has an answer within the first tokens; raise --data.tokens")
        self.tokenizer, self.vocabulary, self.chat = tokenizer, tokenizer.size, chat
        self.name, self.sha256 = name, sha256


class ChatData(MessagesData, Data[TextBatch]):
    """Conversations in two parts."""

    def __init__(
        self, train: ChatPart, validation: ChatPart, tokenizer: Tokenizer, chat: ChatFormat, *, name: str, sha256: str
    ) -> None:
        self._describe(tokenizer, chat, name, sha256, len(train.rows))
        self.train, self.validation = train, validation
        self.validation_count = validation.count

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        """Part ``rank`` of the batch of a step: ``size`` rows."""
        rows = rows_of_step(step, len(self.train.rows), seed=seed, rank=rank, world=world, size=size)
        return self.train.batch(rows)

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        """The validation part."""
        for numbers in rows_in_order(len(self.validation.rows), size, rank, world):
            yield self.validation.batch(numbers)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every conversation occurs once."""
        return len(self.train.rows) / (size * world)


class PreferencePart:
    """Pairs of texts: numbers 2i and 2i + 1 are the preferred and the rejected one of pair i."""

    def __init__(self, texts: Sequence[EncodedChat]):
        self.texts, self.count = texts, len(texts) // 2
        #: The log-probability of each answer by the model before tuning, [2 * count]; None: not computed yet.
        self.reference: Tensor | None = None

    def batch(self, numbers: NDArray[np.int64]) -> PreferenceBatch:
        """The pairs with these numbers; one that does not exist has no target."""
        import torch  # not at the top: configs are read without torch

        rows = [row for number in numbers.tolist() for row in (2 * number, 2 * number + 1)]
        texts = [self.texts[row] if row < len(self.texts) else None for row in rows]
        width = max(STEP, *(-(-(len(text.ids) - 1) // STEP) * STEP for text in texts if text is not None))
        inputs = np.zeros((len(rows), width), np.int64)
        targets = np.full((len(rows), width), IGNORE_INDEX, np.int64)
        for row, text in enumerate(texts):
            if text is not None:
                inputs[row, : len(text.ids) - 1] = text.ids[:-1]
                targets[row, : len(text.ids) - 1] = np.where(text.targets[1:], text.ids[1:], IGNORE_INDEX)
        reference = torch.zeros(len(rows))
        if self.reference is not None:
            known = [place for place, row in enumerate(rows) if row < len(self.texts)]
            reference[known] = self.reference[[rows[place] for place in known]].float()
        return PreferenceBatch(torch.from_numpy(inputs), torch.from_numpy(targets), reference)


class PreferenceData(MessagesData, Data[PreferenceBatch]):
    """Preferences in two parts."""

    def __init__(
        self,
        train: PreferencePart,
        validation: PreferencePart,
        tokenizer: Tokenizer,
        chat: ChatFormat,
        *,
        name: str,
        sha256: str,
    ) -> None:
        self._describe(tokenizer, chat, name, sha256, train.count)
        self.train, self.validation = train, validation
        self.validation_count = validation.count

    @property
    def parts(self) -> tuple[PreferencePart, PreferencePart]:
        """Training and validation."""
        return self.train, self.validation

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> PreferenceBatch:
        """Part ``rank`` of the batch of a step: ``size`` pairs."""
        return self.train.batch(rows_of_step(step, self.train.count, seed=seed, rank=rank, world=world, size=size))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[PreferenceBatch]:
        """The validation part."""
        for numbers in rows_in_order(self.validation.count, size, rank, world):
            yield self.validation.batch(numbers)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every pair occurs once."""
        return self.train.count / (size * world)
