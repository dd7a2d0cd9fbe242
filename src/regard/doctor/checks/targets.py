"""Targets that are not the tokens that follow, or that do not count."""

from torch import Tensor

from regard.data import IGNORE_INDEX, PairBatch, PairData, TextBatch, TextData
from regard.doctor import Check, Findings, RecentBatches
from regard.doctor.checks.label_leak import DISTANCES, LEAKED
from regard.prove.batches import Batch
from regard.tasks import LanguageConfig, TranslationConfig

SHIFTS = range(2, 9)  # wrong distances between input and target that are looked for
MOST = 0.9  # of the targets obey a shift
EXAMINED = 4  # of the newest batches
#: The share of counted targets that end their rows as one token again and again, which has such runs nowhere else.
PADDED, TAIL = 0.1, 3


class TargetFault(Check):
    kind, description = "target_fault", "targets are not the tokens that follow"
    rank = 0

    def on_start(self) -> Findings:
        if self.run.data is not None:
            yield from self.on_batches(RecentBatches({self.run.position: self.run.batch(self.run.position)}))

    def on_batches(self, batches: RecentBatches) -> Findings:
        if not isinstance(self.run.experiment.task, LanguageConfig | TranslationConfig):
            return
        for number, batch in list(batches.batches.items())[:EXAMINED]:
            found = list(self._judge(number, batch))
            yield from found
            if found:
                return

    def _judge(self, number: int, batch: Batch) -> Findings:
        inputs, targets = batch.inputs, batch.targets
        text = isinstance(self.run.data, TextData)
        packed = isinstance(batch, TextBatch) and batch.slots is not None and not text
        if packed or inputs.shape[1] < 2:
            return
        change = "make targets[:, t] the token after inputs[:, t], for every t of every row"
        known = isinstance(self.run.data, TextData | PairData)
        follows, shift, leaked = agreement(inputs, targets, 1), None, False
        if follows < 1:
            shift = next((d for d in SHIFTS if agreement(inputs, targets, d) > MOST), None)
            leaked = any(agreement(inputs, targets, -d) > LEAKED for d in range(DISTANCES))
        padding, token = constant_tails(inputs, targets)
        if padding > PADDED:
            evidence = (
                f"in batch {number} {padding:.0%} of them are token {token}, from some place to the end of each row"
            )
            cause = "padding counts as a target: most of the loss is the prediction of padding"
            yield self.finding("targets", evidence, cause, f"set the targets of padding to {IGNORE_INDEX}")
        elif follows < MOST and shift is not None:
            evidence = f"in batch {number} they are {shift} tokens ahead, not 1"
            yield self.finding("targets", evidence, "targets are shifted too far", change)
        elif leaked:
            return  # which `label_leak` reports
        elif MOST / 2 < follows < 1 or (known and follows < 1):
            evidence = f"in batch {number} {1 - follows:.1%} of them are not the next input"
            cause = "targets are changed after the shift, mixed up between rows, or taken from another window"
            yield self.finding("targets", evidence, cause, change)
        elif isinstance(batch, TextBatch) and text and bool((targets < 0).any()):
            share = float((targets < 0).float().mean())
            places = sorted(set((targets < 0).nonzero()[:, 1].tolist()))
            where = f"positions {places[0]} to {places[-1]}" if len(places) < targets.shape[1] else "all positions"
            evidence = f"in batch {number} {share:.1%} of the targets do not count, at {where}"
            cause = "a mask of the loss is on in the training text, where every target counts once"
            yield self.finding("targets", evidence, cause, "do not ignore targets of plain text")
        elif isinstance(batch, PairBatch):
            yield from self._pairs(number, batch)

    def _pairs(self, number: int, batch: PairBatch) -> Findings:
        """Every translation begins with the begin token, ends with the end token, and its padding does not count."""
        data, counted = self.run.data, batch.targets >= 0
        if data is None or data.specials is None or not bool(counted.any()):
            return
        specials = data.specials
        last = batch.targets.gather(1, (counted.sum(1, keepdim=True) - 1).clamp(min=0))
        rules = {
            "the begin token does not begin them": batch.inputs[:, :1] != specials.begin,
            "they do not end with the end token": last != specials.end,
            "padding counts as a target": batch.targets == specials.pad,
        }
        for what, broken in rules.items():
            share = float(broken.any(1).float().mean())
            if share > 0:
                evidence = f"in {share:.0%} of the rows of batch {number} {what}"
                cause = "the pairs are marked or padded in another way than the model's task expects"
                yield self.finding("targets", evidence, cause, "begin token + translation -> translation + end token")
                return


def constant_tails(inputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """The share of targets at the ends of rows that are one token, `TAIL` times or more, and the token.

    0.0 if the rows have such runs of that token elsewhere too: then it is the text.
    """
    token = int(targets[:, -1].mode().values)
    same = (targets == token) & (inputs == token)
    ends = same.flip(1).cumprod(1).flip(1).bool()
    long = ends.sum(1) >= TAIL
    inner = (same & ~ends).unfold(1, TAIL - 1, 1).all(-1).any() if same.shape[1] >= TAIL else True
    share = float(ends[long].sum()) / max(int((targets >= 0).sum()), 1)
    return (share, token) if token >= 0 and not bool(inner) and float(long.float().mean()) > 0.5 else (0.0, token)


def agreement(inputs: Tensor, targets: Tensor, shift: int) -> float:
    """The share of counted targets that equal the input ``shift`` positions later; 1.0 if there are none."""
    length = inputs.shape[1] - abs(shift)
    if length < 1:
        return 1.0 if shift == 1 else 0.0
    later, wanted = (
        (inputs[:, shift:], targets[:, :length]) if shift >= 0 else (inputs[:, :length], targets[:, -shift:])
    )
    counted = wanted >= 0
    if shift > 0:
        counted &= targets[:, shift:] >= 0  # the input after the last token of a row is padding
    total = int(counted.sum())
    if not total or len(wanted[counted].unique()) < 3:
        return 1.0 if shift == 1 else 0.0
    return float(((later == wanted) & counted).sum()) / total
