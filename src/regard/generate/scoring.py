"""Log-probabilities of texts after a prompt: what a language model is asked without training it (Brown et al. 2020).

A choice is compared by its log-probability: as it is, per token, or per byte, so that longer choices are not at a
disadvantage. Contextual calibration (Zhao et al. 2021) divides by what the model says without any content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data import Tokenizer
from regard.errors import UserError
from regard.generate.sentences import batches_by_length
from regard.models.base import LanguageModel
from regard.models.device import parameter_device

TOKENS = 4096  # of a batch, padding included
Measure = Literal["sum", "token", "byte"]


class ScoredText(NamedTuple):
    """The log-probability of a text after a prompt."""

    text: str
    total: float  # nats
    tokens: int
    size: int  # bytes
    greedy: bool  # greedy decoding would write it
    truncated: int  # tokens of the prompt that were left out because the context is too short

    def by(self, measure: Measure) -> float:
        """The log-probability, or its mean over tokens or bytes."""
        return self.total / {"sum": 1, "token": max(1, self.tokens), "byte": max(1, self.size)}[measure]


class ScoreRequest(NamedTuple):
    """Texts that may follow a prompt."""

    prompt: str
    choices: Sequence[str]


class _Row(NamedTuple):
    request: int
    choice: int
    ids: Tensor  # [N]
    first: int  # the place of the first token that is scored
    truncated: int


class Scorer:
    """A language model that scores texts, many at a time."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, longest: int | None = None):
        """``longest``: of an input, in tokens; default: the model's context."""
        self.model, self.tokenizer = model, tokenizer
        self.longest = longest or model.config.context

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, list[ScoredText]]]:
        """The number of each request and the scores of its choices, as they are done, not in order."""
        rows = [row for number, request in enumerate(requests) for row in self._rows(number, request)]
        found: dict[int, dict[int, ScoredText]] = {}
        for numbers in batches_by_length([len(row.ids) for row in rows], TOKENS):
            batch = [rows[number] for number in numbers]
            for row, (total, greedy) in zip(batch, self._score(batch), strict=True):
                request = requests[row.request]
                text = request.choices[row.choice]
                counts = len(row.ids) - row.first, len(text.encode())
                scores = found.setdefault(row.request, {})
                scores[row.choice] = ScoredText(text, total, *counts, greedy, row.truncated)
                if len(scores) == len(request.choices):
                    yield row.request, [scores[choice] for choice in sorted(found.pop(row.request))]

    def _rows(self, number: int, request: ScoreRequest) -> Iterator[_Row]:
        """The tokens of the prompt with each choice. What is scored begins at the same token for all choices: a token
        may contain the end of the prompt and the beginning of a choice, such as a space and a word."""
        prompt = self.tokenizer.encode(request.prompt or "\n").tolist()
        texts = [self.tokenizer.encode((request.prompt or "\n") + choice).tolist() for choice in request.choices]
        shared = max(1, min(_common(prompt, text) for text in texts))
        for choice, text in enumerate(texts):
            if len(text) - shared > self.longest:
                raise UserError(
                    f"the choice {request.choices[choice][:40]!r} has {len(text) - shared} tokens, but the model reads "
                    f"{self.longest}; leave it out"
                )
            left_out = max(0, len(text) - 1 - self.longest)  # the last token is only predicted
            yield _Row(number, choice, torch.tensor(text[left_out:]), shared - left_out, left_out)

    @torch.no_grad()
    def _score(self, rows: Sequence[_Row]) -> Iterator[tuple[float, bool]]:
        """The log-probability of each row's last tokens. Padding comes last, where a causal model does not see it."""
        ids = pad_sequence([row.ids for row in rows], batch_first=True).to(parameter_device(self.model))  # [B, N]
        features = self.model.features(ids[:, :-1])  # [B, N - 1, C]
        for number, row in enumerate(rows):
            place = slice(row.first - 1, len(row.ids) - 1)
            logits = self.model.head(features[number : number + 1, place])[0]  # [T, V]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            targets = ids[number, row.first : len(row.ids)]
            chosen = logits.log_softmax(-1).gather(1, targets[:, None])
            yield float(chosen.double().sum()), bool((logits.argmax(-1) == targets).all())


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with in common; of the second, one is left to be scored."""
    pairs = enumerate(zip(one, other[:-1], strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other) - 1))


def calibrated(scores: Tensor, content_free: Tensor) -> Tensor:
    """The log-probabilities [..., K] of K choices after contextual calibration (Zhao et al. 2021, sec. 5).

    ``content_free`` [F, K]: log-probabilities of the same choices after prompts without content ("N/A"). The mean of
    their probabilities, normalized over the choices, is p; the result is W q with W = diag(p)⁻¹, normalized.

    >>> calibrated(torch.tensor([-1.0, -2.0]), torch.tensor([[-1.0, -2.0]])).exp()
    tensor([0.5000, 0.5000])
    """
    mean = content_free.softmax(-1).mean(0)
    return (scores.log_softmax(-1) - mean.log()).log_softmax(-1)
