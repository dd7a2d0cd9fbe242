"""Tokens outside the vocabulary."""

from collections.abc import Iterator

from torch import Tensor

from regard.doctor import Check, Finding, RecentBatches
from regard.prove.batches import Batch

SIDES = {"inputs": 0, "source": 0, "targets": -1}  # with the lowest valid token


class TokenRange(Check):
    kind, description = "token_range", "a token is outside the vocabulary"

    def on_batches(self, batches: RecentBatches) -> Iterator[Finding]:
        for number, batch in batches.batches.items():
            yield from self.judge(number, batch)

    def on_failure(self, error: BaseException) -> Iterator[Finding]:
        if isinstance(error, IndexError | RuntimeError):
            for number in range(self.run.position, self.run.position + self.run.experiment.train.accumulate):
                yield from self.judge(number, self.run.batch(number))

    def judge(self, number: int, batch: Batch) -> Iterator[Finding]:
        """The first such token of each tensor of one batch."""
        vocabulary = self.run.vocabulary
        for name, tokens in batch._asdict().items():
            if name not in SIDES or not isinstance(tokens, Tensor) or self.run.in_range(tokens, SIDES[name]):
                continue
            least, most = (int(edge) for edge in tokens.aminmax())
            wrong = most if most >= vocabulary else least
            place = ", ".join(map(str, (tokens == wrong).nonzero()[0].tolist()))
            evidence = f"it is {wrong}, and the vocabulary is 0 to {vocabulary - 1}"
            cause = "text and model have different tokenizers, or the batch is built wrongly"
            change = f"--model.vocabulary {wrong + 1}, or fix the tokenizer"
            yield self.finding(f"batch {number}, {name}[{place}]", evidence, cause, change)
