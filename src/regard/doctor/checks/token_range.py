"""Tokens outside the vocabulary."""

from regard.doctor import Check, Findings, RecentBatches
from regard.prove.batches import Batch, out_of_range


class TokenRange(Check):
    kind, description = "token_range", "a token is outside the vocabulary"

    def on_batches(self, batches: RecentBatches) -> Findings:
        for number, batch in batches.batches.items():
            yield from self.judge(number, batch)

    def on_failure(self, error: BaseException) -> Findings:
        if isinstance(error, IndexError | RuntimeError):
            for number in range(self.run.position, self.run.position + self.run.experiment.train.accumulate):
                yield from self.judge(number, self.run.batch(number))

    def judge(self, number: int, batch: Batch) -> Findings:
        """One such token of each tensor of one batch."""
        vocabulary = self.run.vocabulary
        for name, place, token in out_of_range(batch, vocabulary):
            evidence = f"it is {token}, and the vocabulary is 0 to {vocabulary - 1}"
            cause = "text and model have different tokenizers, or the batch is built wrongly"
            change = f"--model.vocabulary {token + 1}, or fix the tokenizer" if token >= 0 else "fix the tokenizer"
            yield self.finding(f"batch {number}, {name}{place}", evidence, cause, change)
