"""Targets that are already in the input, so that copying is enough."""

from regard.data import LabeledBatch, PairBatch
from regard.doctor import Check, Findings, RecentBatches
from regard.prove.batches import Batch

#: The share of targets that equal the input at the same distance before them: text repeats a letter in ten at most.
LEAKED = 0.6
DISTANCES = 4  # positions before a target that are searched for it
FEWEST = 3  # different targets: a text of one letter is its own answer


class LabelLeak(Check):
    kind, description = "label_leak", "the answer is in the question"
    follows = ("target_fault",)

    def on_start(self) -> Findings:
        if self.run.data is not None:
            yield from self.on_batches(RecentBatches({self.run.position: self.run.batch(self.run.position)}))

    def on_batches(self, batches: RecentBatches) -> Findings:
        if not isinstance(batches.newest, LabeledBatch):
            yield from self._unshifted(batches.newest)
        if isinstance(batches.newest, PairBatch):
            yield from self._copied(batches.newest)

    def _unshifted(self, batch: Batch) -> Findings:
        """Fraction of targets that already appear in the input at or before their position."""
        inputs, targets = batch.inputs, batch.targets
        for distance in range(min(DISTANCES, inputs.shape[1] - 1)):
            seen, wanted = inputs[:, : inputs.shape[1] - distance], targets[:, distance:]
            counted = wanted >= 0
            if len(wanted[counted].unique()) < FEWEST:
                continue
            share = float(((seen == wanted) & counted).sum() / counted.sum())
            if share > LEAKED:
                which = "itself" if not distance else f"{distance} before it"
                evidence = f"{share:.0%} of the targets are the input {which}, not the one that follows"
                cause = "targets were not shifted by one, or in the wrong direction"
                yield self.finding("targets", evidence, cause, "make targets[:, t] the token after inputs[:, t]")
                return

    def _copied(self, batch: PairBatch) -> Findings:
        """Fraction of translations that appear in their own source."""
        lengths = batch.source_lengths.tolist()
        sources = [row[:length].tolist() for row, length in zip(batch.source, lengths, strict=True)]
        targets = [row[row >= 0][:-1].tolist() for row in batch.targets]  # without the end token
        pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if target]
        copied = sum(any(s[i : i + len(t)] == t for i in range(len(s) - len(t) + 1)) for s, t in pairs)
        if pairs and copied > LEAKED * len(pairs):
            evidence = f"{copied / len(pairs):.0%} of the translations are in their own source, word for word"
            cause = "both sides were read from the same column or file, or the source contains the translation"
            yield self.finding("source", evidence, cause, "each line of --data.path must be source, tab, target")
