"""Second held-out list: faults of tokenizers, losses, targets and data."""

import difflib
import random
import re

import numpy as np
import torch
from second_held_out_contract import WindowedConfig
from second_held_out_kit import Effects, drawn, seeded
from second_held_out_texts import paragraphs, sentences, text_data
from small_decoder import Entries
from torch import Tensor
from torch.nn import functional as F

from regard.data import IGNORE_INDEX, TextBatch, TextData
from regard.data.tokenizers import Tokenizer, write_json
from regard.prove import ModelUnderTest
from regard.tasks import LanguageTask, Term

FAULTS, EFFECTS = Entries(), Effects()


class Pairs(Tokenizer):
    """Bytes, and tokens for frequent pairs of bytes."""

    def __init__(self, pairs: list[str]):
        self.tokens = [bytes([i]) for i in range(256)] + [pair.encode() for pair in pairs]
        self.ids = {token: [i] for i, token in enumerate(self.tokens)}

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def widths(self) -> np.ndarray:
        return np.array([len(token) for token in self.tokens])

    def encode(self, text: str) -> np.ndarray:
        pieces = re.findall(rb"(?s)[A-Za-z]{2}|.", text.encode())
        return np.array([i for piece in pieces for i in self.ids.get(piece) or piece], dtype=np.int64)

    def decode_bytes(self, ids) -> bytes:
        return b"".join(self.tokens[i] for i in self._checked(ids))

    def decode(self, ids) -> str:
        return "".join(self.tokens[i].decode("utf-8", "replace") for i in self._checked(ids))

    def cut(self, text: str) -> int:
        return max(text.rfind(" "), text.rfind("\n")) + 1

    def save(self, path) -> None:
        write_json(path, {"type": "second-held-out-pairs", "pairs": [token.decode() for token in self.tokens[256:]]})

    @classmethod
    def read(cls, content: dict):
        return cls(content["pairs"]) if content.get("type") == "second-held-out-pairs" else None

    def _identity(self):
        return tuple(self.tokens)


@FAULTS("tokenizer")
def token_by_token_text():
    """Decode turns each token into text on its own, so characters of several bytes become U+FFFD."""
    tokenizer = Pairs(["th", "he", "in", "er"])
    model = seeded(WindowedConfig(vocabulary=tokenizer.size).build)
    return ModelUnderTest(model, tokenizer=tokenizer)


@EFFECTS(token_by_token_text)
def _():
    tokenizer = Pairs(["th", "he", "in", "er"])
    assert tokenizer.decode(tokenizer.encode("the inner")) == "the inner"
    return float(tokenizer.decode(tokenizer.encode("naïve")) != "naïve")


class MeanLoss:
    def terms(self, model, batch: TextBatch) -> dict[str, Term]:
        logits = model(batch.inputs, batch.slots).float().flatten(0, 1)
        loss = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE_INDEX)
        return {"next": Term(loss, self.counts(batch)["next"])}

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        return {"next": batch.targets.new_ones(())}


def data_of(text: str, validation: str | None = None, *, kind=None):
    """Windows of 24 tokens; `kind` replaces the class of the data."""
    made = text_data(text, validation, context=24)
    if kind is not None:
        made.__class__ = kind
    return made


def with_data(text: str, validation: str | None = None, *, kind=None, task=None) -> ModelUnderTest:
    made = data_of(text, validation, kind=kind)
    model = seeded(WindowedConfig(vocabulary=made.vocabulary, context=24).build)
    return ModelUnderTest(model, task=task, data=made, tokenizer=made.tokenizer)


@FAULTS("loss accumulation")
def mean_loss():
    """A task gives the mean of each micro-batch with a count of 1, so targets of micro-batches with ignored ones weigh
    more."""
    return with_data("\n".join(sentences(1, 300)), task=MeanLoss())


@EFFECTS(mean_loss)
@torch.no_grad()
def _():
    model, tokens = seeded(WindowedConfig(vocabulary=41).build), drawn(4, 12, 41)
    targets = tokens.roll(-1, 1)
    targets[2:, 3:] = IGNORE_INDEX

    def loss(*parts):
        terms = [MeanLoss().terms(model, TextBatch(tokens[p], targets[p]))["next"] for p in parts]
        return float(sum(t.total for t in terms) / sum(t.count for t in terms))

    return abs(loss(slice(0, 4)) - loss(slice(0, 2), slice(2, 4)))


class Wrapped(TextData):
    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        batch = super().batch(step, seed=seed, rank=rank, world=world, size=size)
        return batch._replace(targets=batch.inputs.roll(-1, 1))


@FAULTS("loss")
def rolled_targets():
    """Targets are inputs.roll(-1): the last target of a window is its first token."""
    return with_data("\n".join(sentences(1, 300)), kind=Wrapped, task=LanguageTask())


@EFFECTS(rolled_targets)
def _():
    text = "\n".join(sentences(1, 300))
    right, wrong = (data_of(text, kind=kind).batch(0, seed=0, size=8) for kind in (None, Wrapped))
    assert torch.equal(right.inputs, wrong.inputs)
    return float((right.targets != wrong.targets).sum())


def text_of_shuffled_windows() -> tuple[str, str]:
    text = " ".join(sentences(2, 1200))
    windows = [text[i : i + 400] for i in range(0, len(text) - 400, 200)]
    random.Random(3).shuffle(windows)
    kept = len(windows) * 9 // 10
    return "\n\n".join(windows[:kept]), "\n\n".join(windows[kept:])


def text_with_noisy_copies() -> tuple[str, str]:
    train, fresh = paragraphs(4, 300), paragraphs(5, 36)
    rng = random.Random(6)

    def misread(text: str) -> str:
        return "".join(rng.choice("abcdeilmnorstu") if c.isalpha() and rng.random() < 0.05 else c for c in text)

    held = fresh + [misread(train[i]) for i in range(7, 300, 25)]
    rng.shuffle(held)
    return "\n\n".join(train), "\n\n".join(held)


@FAULTS("overlap")
def shuffled_windows():
    """Overlapping windows of a text are shuffled and then split: most validation text is also in the training text."""
    return with_data(*text_of_shuffled_windows())


@FAULTS("overlap")
def misread_copies():
    """A quarter of the validation paragraphs are training paragraphs with 5 % of the letters misread."""
    return with_data(*text_with_noisy_copies())


@EFFECTS(shuffled_windows)
def _():
    train, held = text_of_shuffled_windows()
    pieces = [held[i : i + 60] for i in range(0, len(held) - 60, 97)]
    return sum(piece in train for piece in pieces) / len(pieces)


@EFFECTS(misread_copies)
def _():
    train, held = (text.split("\n\n") for text in text_with_noisy_copies())
    copied = 0
    for text in held:
        near = max(train, key=lambda other: len(set(text.split()) & set(other.split())))
        copied += difflib.SequenceMatcher(None, text, near, autojunk=False).ratio() > 0.9
    return copied / len(held)
