"""Batches that are not what their task defines: wrong targets, answers in the input, tokens outside the vocabulary."""

from torch import Tensor

from regard.data import IGNORE_INDEX, LabeledBatch, PairBatch, PairData, SentencePairs, TextBatch, TextData
from regard.doctor import Check, Finding, Findings, RecentBatches, SidePass
from regard.doctor.calls import record_calls
from regard.prove.batches import Batch, has_tokens, out_of_range
from regard.tasks import LanguageConfig, MaskedTokensConfig, TranslationConfig

SHIFTS = (0, -1, -2, -3, *range(2, 9))  # wrong distances from an input to its target that are looked for
#: The share of targets that obey a shift forward, or backward to inputs that the model has read: text repeats a letter
#: in ten at most.
MOST, LEAKED = 0.9, 0.6
EXAMINED = 4  # of the newest batches
HIDDEN = 0.9  # of the tokens that a masked model predicts: the others stay as they are (Devlin et al. 2019, sec. 3.1)
#: The share of counted targets that end their rows as one token again and again, which has such runs nowhere else.
PADDED, TAIL = 0.1, 3
NEXT = "make targets[:, t] the token after inputs[:, t], for every t of every row"


class TokenRange(Check):
    kind, description = "token_range", "a token is outside the vocabulary"

    def on_batches(self, batches: RecentBatches) -> Findings:
        for number, batch in batches.batches.items():
            yield from self.judge(number, batch)

    def on_failure(self, error: BaseException) -> Findings:
        if isinstance(error, IndexError | RuntimeError):
            for number in range(self.run.position, self.run.position + self.run.micro_batches):
                yield from self.judge(number, self.run.batch(number))

    def judge(self, number: int, batch: Batch) -> Findings:
        """One such token of each tensor of one batch."""
        vocabulary = self.run.vocabulary
        for name, place, token in out_of_range(batch, vocabulary):
            evidence = f"it is {token}, and the vocabulary is 0 to {vocabulary - 1}"
            cause = "text and model have different tokenizers, or the batch is built wrongly"
            change = f"--model.vocabulary {token + 1}, or fix the tokenizer" if token >= 0 else "fix the tokenizer"
            yield self.finding(f"batch {number}, {name}{place}", evidence, cause, change)


class TargetFault(Check):
    kind, description = "target_fault", "targets are not what the model should predict"
    rank = 0

    def on_start(self) -> Findings:
        if self.run.data is not None:
            yield from self.on_batches(RecentBatches({self.run.position: self.run.batch(self.run.position)}))

    def on_batches(self, batches: RecentBatches) -> Findings:
        newest = list(batches.batches.items())[:EXAMINED]
        yield from filter(None, [next(filter(None, (self._judge(*one) for one in newest)), None)])

    def on_model(self, side_pass: SidePass) -> Findings:
        """Tokens that a masked model predicts and reads."""
        task = self.run.experiment.task
        if not isinstance(task, MaskedTokensConfig) or not side_pass.deep:
            return
        batch = side_pass.few
        with side_pass.mode():
            calls = record_calls(side_pass.model, lambda: self.run.terms(batch))
        read = next((x for call in calls for x in call.inputs if x.shape == batch.inputs.shape), None)
        if read is None or read.is_floating_point():
            return
        hidden, due = float((read != batch.inputs).float().mean()), HIDDEN * task.share
        if hidden < due / 2:
            evidence = f"the model reads {hidden:.1%} other tokens than the text has, and {due:.1%} are to be hidden"
            cause = "tokens that it predicts are not masked in its inputs: copying them is enough"
            change = "give the model the masked copy: 80 % of the chosen tokens are the mask token, 10 % random ones"
            yield self.finding("the masked inputs", evidence, cause, change)

    def _judge(self, number: int, batch: Batch) -> Finding | None:
        text, pairs = isinstance(self.run.data, TextData), isinstance(self.run.data, PairData)
        packed = isinstance(batch, TextBatch) and batch.slots is not None and not text
        if not has_tokens(batch) or isinstance(batch, LabeledBatch) or packed or batch.inputs.shape[1] < 2:
            return None
        follows = agreement(batch.inputs, batch.targets, 1)
        if follows < 1 and (found := self._shifted(number, batch)):
            return found
        if not isinstance(self.run.experiment.task, LanguageConfig | TranslationConfig):
            return None
        padding, token = constant_tails(batch.inputs, batch.targets)
        ignored = batch.targets < 0
        if padding > PADDED:
            evidence = f"in batch {number} {padding:.0%} of them are token {token}, to the end of each row"
            cause = "padding counts as a target: most of the loss is the prediction of padding"
            return self.finding("targets", evidence, cause, f"set the targets of padding to {IGNORE_INDEX}")
        if MOST / 2 < follows < 1 or ((text or pairs) and follows < 1):
            evidence = f"in batch {number} {1 - follows:.1%} of them are not the next input"
            cause = "targets are changed after the shift, mixed up between rows, or taken from another window"
            return self.finding("targets", evidence, cause, NEXT)
        if text and bool(ignored.any()):
            places = sorted(set(ignored.nonzero()[:, 1].tolist()))
            evidence = f"in batch {number} {float(ignored.float().mean()):.1%} of the targets do not count"
            cause = "a mask of the loss is on in the training text, where every target counts once"
            evidence += f", at positions {places[0]} to {places[-1]}"
            return self.finding("targets", evidence, cause, "do not ignore targets of plain text")
        return self._pair(number, batch) if isinstance(batch, PairBatch) else None

    def _shifted(self, number: int, batch: Batch) -> Finding | None:
        """Targets at another distance from their inputs."""
        for shift in SHIFTS:
            share = agreement(batch.inputs, batch.targets, shift)
            if share > (MOST if shift > 0 else LEAKED):
                which = (
                    f"{shift} tokens ahead" if shift > 0 else f"the input {-shift} before it" if shift else "the input"
                )
                cause = (
                    "targets are shifted too far"
                    if shift > 0
                    else "they are not shifted, or backwards: copying is enough"
                )
                evidence = f"in batch {number} {share:.0%} of them are {which}, not the next token"
                return self.finding("targets", evidence, cause, NEXT)
        return None

    def _pair(self, number: int, batch: PairBatch) -> Finding | None:
        """A translation is not in its source, has begin and end tokens, and its padding does not count."""
        data, counted = self.run.data, batch.targets >= 0
        lengths = batch.source_lengths.tolist()
        sources = [row[:length].tolist() for row, length in zip(batch.source, lengths, strict=True)]
        targets = [row[row >= 0][:-1].tolist() for row in batch.targets]  # without the end token
        pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if t]
        copied = sum(any(s[i : i + len(t)] == t for i in range(len(s) - len(t) + 1)) for s, t in pairs)
        if copied > LEAKED * len(pairs) and not (isinstance(data, PairData) and copies(data.train)):
            evidence = f"{copied / len(pairs):.0%} of the translations are in their own source, word for word"
            cause = "both sides were read from the same column or file, or the source contains the translation"
            return self.finding("source", evidence, cause, "each line of --data.path must be source, tab, target")
        if data is None or data.specials is None or not bool(counted.any()):
            return None
        last = batch.targets.gather(1, (counted.sum(1, keepdim=True) - 1).clamp(min=0))
        rules = {
            "the begin token does not begin them": batch.inputs[:, :1] != data.specials.begin,
            "they do not end with the end token": last != data.specials.end,
            "padding counts as a target": batch.targets == data.specials.pad,
        }
        for what, broken in rules.items():
            if bool(broken.any()):
                evidence = f"in {float(broken.any(1).float().mean()):.0%} of the rows of batch {number} {what}"
                cause = "the pairs are marked or padded in another way than the model's task expects"
                return self.finding("targets", evidence, cause, "begin token + translation -> translation + end token")
        return None


def copies(pairs: SentencePairs) -> bool:
    """Whether most translations of a file are in their source: then that is the task."""
    same = sum(target in source for source, target in zip(pairs.sources, pairs.targets, strict=True))
    return same > LEAKED * len(pairs.sources)


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
    """The share of counted targets that equal the input ``shift`` positions later.

    If there are none, or fewer than three different ones, the next input is the answer: 1.0 for a shift of 1, else 0.0.
    """
    length, none = inputs.shape[1] - abs(shift), float(shift == 1)
    if length < 1:
        return none
    seen = inputs[:, shift:] if shift >= 0 else inputs[:, :length]
    wanted = targets[:, :length] if shift >= 0 else targets[:, -shift:]
    counted = wanted >= 0
    if shift > 0:
        counted &= targets[:, shift:] >= 0  # the input after the last token of a row is padding
    return float((seen == wanted)[counted].float().mean()) if len(wanted[counted].unique()) > 2 else none
