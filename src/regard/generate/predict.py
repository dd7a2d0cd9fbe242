"""Predictions of a fine-tuned encoder: classes of texts, tags of words, answers in passages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention import Padded
from regard.data.base import LabeledBatch
from regard.data.labeled.encoding import InputEncoder, Keep
from regard.data.tokenizers import EncodedText, Tokenizer
from regard.errors import UserError
from regard.generate.sentences import batches_by_length
from regard.models.base import Encoder
from regard.models.device import parameter_device
from regard.models.encoder import TransformerEncoder
from regard.nn.heads import ClassesHeadConfig, HeadConfig, LabeledHeadConfig, SpansHeadConfig, TokenClassesHeadConfig
from regard.tasks.labeled import best_spans, span_logits, window_means

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")  # words and signs, as treebanks divide a text


class ClassPrediction(NamedTuple):
    """The class of a text or of an image."""

    label: str
    probability: float
    probabilities: dict[str, float]

    @classmethod
    def of(cls, labels: Sequence[str], logits: Tensor) -> ClassPrediction:
        """The class with the highest of the logits [classes]."""
        shares = dict(zip(labels, logits.softmax(-1).tolist(), strict=True))
        best = max(shares, key=shares.__getitem__)
        return cls(best, shares[best], shares)


class TagPrediction(NamedTuple):
    """The tags of a text's words."""

    words: list[str]
    tags: list[str]


class AnswerPrediction(NamedTuple):
    """The answer to a question; an empty text: the passage has none."""

    answer: str
    start: int  # where it begins in the passage, in characters
    probability: float  # of both ends


class Predictor:
    """Predictions by an encoder in evaluation mode, its tokenizer, and the longest input it was trained on.

    A longer text is classified by the part to ``keep``, or by up to ``windows`` windows.
    """

    def __init__(
        self,
        model: Encoder,
        tokenizer: Tokenizer,
        longest: int | None = None,
        keep: Keep = "start",
        windows: int = 1,
    ):
        if not isinstance(model, TransformerEncoder):
            raise UserError(f"a {type(model).__name__} has no head for predictions")
        self.model = model
        self.head: HeadConfig = model.config.output
        context = model.config.context
        self.encoder = InputEncoder(tokenizer, min(longest or context, context), keep, windows)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or tags."""
        assert isinstance(self.head, LabeledHeadConfig)
        return self.head.names

    def classes(self, texts: Sequence[str]) -> list[ClassPrediction]:
        """The class of each text."""
        self._check(ClassesHeadConfig, "classifies no texts")
        windows = self.encoder.windows(texts)
        rows = torch.stack(list(self._outputs([one for some in windows for one in some])))
        owners = torch.arange(len(texts)).repeat_interleave(torch.tensor([len(some) for some in windows]))
        means = window_means(rows.log_softmax(-1), owners, len(texts))
        return [ClassPrediction.of(self.labels, scores) for scores in means]

    def tags(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[TagPrediction]:
        """The tag of each word of each text; a text that is not divided into words is divided here."""
        self._check(TokenClassesHeadConfig, "tags no words")
        sentences = [WORD.findall(text) if isinstance(text, str) else list(text) for text in texts]
        if not all(sentences):
            raise UserError("a text has no words; leave it out")
        encoded = self.encoder.words(sentences)
        found = []
        for words, text, outputs in zip(sentences, encoded, self._outputs(encoded), strict=True):
            best = outputs.argmax(-1).tolist()
            first = {word: place for place, word in reversed(list(enumerate(text.words.tolist()))) if word >= 0}
            kept = [number for number in range(len(words)) if number in first]  # others are cut off
            tags = [self.labels[best[first[number]]] for number in kept]
            found.append(TagPrediction([words[number] for number in kept], tags))
        return found

    def answers(self, pairs: Sequence[tuple[str, str]]) -> list[AnswerPrediction]:
        """The answers to questions, each with its passage."""
        self._check(SpansHeadConfig, "answers no questions")
        encoded = self.encoder.pairs(pairs)
        found = []
        for (_, passage), text, outputs in zip(pairs, encoded, self._outputs(encoded), strict=True):
            ids, types = torch.from_numpy(text.ids)[None], torch.from_numpy(text.types)[None]
            logits = span_logits(outputs[None], LabeledBatch(ids, ids, Padded(torch.tensor([len(text.ids)]), 1), types))
            first, last = best_spans(logits)[0].tolist()
            probability = float(logits.softmax(-1)[0, [0, 1], [first, last]].prod())
            begin, stop = (text.spans[first][0], text.spans[last][1]) if text.types[first] == 1 else (0, 0)
            found.append(AnswerPrediction(passage[begin:stop], int(begin), probability))
        return found

    def _check(self, kind: type[HeadConfig], problem: str) -> None:
        if not isinstance(self.head, kind):
            raise UserError(f"the head of this model is {self.head.kind!r}, and {problem}; choose another run")

    @torch.no_grad()
    def _outputs(self, texts: Sequence[EncodedText]) -> Iterator[Tensor]:
        """The outputs of the head for each text, without padding, in float32 on the CPU."""
        device, found = parameter_device(self.model), {}
        for rows in batches_by_length([len(text.ids) for text in texts]):
            ids, types = (
                pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True).to(device)
                for parts in ([texts[row].ids for row in rows], [texts[row].types for row in rows])
            )
            lengths = torch.tensor([len(texts[row].ids) for row in rows], device=device)
            outputs = self.model(ids, Padded(lengths, ids.shape[1]), types if self.model.token_types else None)
            for row, output in zip(rows, outputs.float().cpu(), strict=True):
                found[row] = output if self.head.pool else output[: len(texts[row].ids)]
        return (found[row] for row in range(len(texts)))
