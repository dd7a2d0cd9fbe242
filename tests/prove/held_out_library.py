"""Held-out faults in models, losses, tokenizers and data of this library."""

import math
import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from tempfile import mkdtemp

import numpy as np
import torch
from small_decoder import Entries, randomize
from torch.nn import functional as F

from regard.attention import Packed
from regard.config import option
from regard.data import IGNORE_INDEX, TextConfig
from regard.data.tokenizers import Tokenizer
from regard.models import GPT, GPTConfig
from regard.nn.positions.position import LearnedPositionConfig
from regard.prove import ModelUnderTest
from regard.tasks import LanguageTask, Term

FAULTS = Entries()
V = 40


@dataclass(frozen=True)
class FaultyConfig(GPTConfig, kind="held-out-fault"):
    """A GPT of this library with one fault."""

    fault: str = option("", "the fault")

    def make(self):
        model = GPT(self)
        model.__class__ = CLASSES[self.fault]
        if self.fault == "checkpoint":
            model.mixing = torch.randn(self.width, self.width) * 0.3 / math.sqrt(self.width)
        return model


def faulty(name, **settings):
    size = {"vocabulary": V, "context": 32, "layers": 2, "heads": 2, "width": 32, "cap": None}
    return randomize(FaultyConfig(fault=name, **{**size, **settings}).build())


class RaggedPositions(GPT):
    def consume(self, tokens, state, lengths):
        x, state = super().consume(tokens, state, lengths)
        state.position.copy_(state.position.max().expand_as(state.position))
        return x, state


@FAULTS("step")
def ragged_prompts():
    """A GPT whose decoder keeps one position for the whole batch: after prompts of different lengths, the shorter rows
    continue at the longest one's position. Batches of equal prompts are right.
    Expected: rows of different lengths decode differently from single rows."""
    return ModelUnderTest(faulty("ragged"))


# --- padding and packing -------------------------------------------------------------------------------------------


class CrossingNGrams(GPT):
    def _embed(self, tokens, earlier, phase):
        inside = torch.maximum(phase, torch.arange(tokens.shape[1]))  # the place in the row, not in the document
        x = self.embed(tokens) + self.ngrams(earlier, inside)
        return self.drop(self.position.embed(x, phase))


@FAULTS("packing")
def ngrams_cross_documents():
    """A GPT with bigram embeddings: the previous token of a document's first token is the last one of the document
    before it in the packed row. Attention itself is separated.
    Expected: a packed document's first logits depend on the document before it."""
    return ModelUnderTest(faulty("ngrams", ngrams=2, buckets=4096))


class ContinuingPositions(GPT):
    def features(self, tokens, slots=None):
        if isinstance(slots, Packed):
            order = torch.arange(tokens.shape[1]).expand_as(slots.phase)
            slots = slots._replace(phase=order)
        return super().features(tokens, slots)


@FAULTS("packing")
def positions_continue():
    """A GPT with learned positions that do not restart with each packed document: the documents do not see each other,
    but the second one is encoded as if it began in the middle.
    Expected: a document has other logits when packed than alone."""
    return ModelUnderTest(faulty("positions", position=LearnedPositionConfig()))


def sound_gpt():
    return randomize(GPTConfig(vocabulary=V, context=32, layers=1, heads=2, width=32).build())


@FAULTS("loss")
def padding_in_the_loss():
    """The task clamps targets to 0 before the cross entropy, so ignored targets (-1) are learned as token 0; its
    `counts` are right.
    Expected: ignored targets change the loss."""

    class Clamped(LanguageTask):
        def terms(self, model, batch):
            logits = model(batch.inputs, batch.slots).flatten(0, 1)
            total = F.cross_entropy(logits, batch.targets.flatten().clamp(min=0), reduction="sum")
            return {"next_token": Term(total, self.counts(batch)["next_token"])}

    return ModelUnderTest(sound_gpt(), task=Clamped())


@FAULTS("loss")
def last_target_skipped():
    """The loss cuts the last position of every row, as one does when the targets still have to be shifted, but here
    they are shifted already; the count still includes it.
    Expected: the last target of a row has no effect on the loss."""

    class Skips(LanguageTask):
        def terms(self, model, batch):
            logits = model(batch.inputs, batch.slots)[:, :-1].flatten(0, 1)
            targets = batch.targets[:, :-1].flatten()
            total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
            return {"next_token": Term(total, self.counts(batch)["next_token"])}

    return ModelUnderTest(sound_gpt(), task=Skips())


@FAULTS("accumulation")
def mean_of_means():
    """The task returns the mean over the micro-batch and the count 1: micro-batches with few targets weigh as much as
    full ones, so unequal micro-batches do not add up to the token mean.
    Expected: targets do not have equal weights; accumulation or padding changes the loss."""

    class Means(LanguageTask):
        def terms(self, model, batch):
            logits = model(batch.inputs, batch.slots).transpose(1, 2)
            each = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE_INDEX, reduction="none")
            number = (batch.targets != IGNORE_INDEX).sum().clamp(min=1)
            return {"next_token": Term(each.sum() / number, torch.tensor(1))}

        def counts(self, batch):
            return {"next_token": torch.tensor(1)}

    return ModelUnderTest(sound_gpt(), task=Means())


class Normalizing(Tokenizer):
    """Bytes of the NFKC form, without carriage returns."""

    @property
    def size(self):
        return 256

    @property
    def widths(self):
        return np.ones(256, dtype=np.int64)

    def encode(self, text):
        clean = unicodedata.normalize("NFKC", text.replace("\r\n", "\n"))
        return np.frombuffer(clean.encode(), dtype=np.uint8).astype(np.int64)

    def decode_bytes(self, ids):
        return self._checked(ids).astype(np.uint8).tobytes()

    def cut(self, text):
        return max(text.rfind(" "), 0)


@FAULTS("tokenizer")
def normalizing_tokenizer():
    """A byte tokenizer that normalizes to NFKC and drops carriage returns: plain ASCII is fine, but ligatures, "²",
    full width letters and Windows line ends do not survive.
    Expected: a text that does not come back, with the character."""
    model = randomize(GPTConfig(vocabulary=256, context=32, layers=1, heads=2, width=32).build())
    return ModelUnderTest(model, tokenizer=Normalizing())


class LosesTensor(GPT):
    mixing: torch.Tensor

    def head(self, x):
        return super().head(x + x @ self.mixing.to(x.dtype))


@FAULTS("checkpoint")
def plain_tensor_attribute():
    """A fixed random projection is a plain attribute instead of a buffer: it is not in the state dict, so a loaded
    model draws another one.
    Expected: the logits do not survive saving and loading."""
    return ModelUnderTest(faulty("checkpoint"))


class NumpyPositions(GPT):
    def _embed(self, tokens, earlier, phase):
        scale = torch.from_numpy(1 + 0.1 * np.log1p(phase.detach().cpu().numpy())).to(self.embed.weight.dtype)
        return super()._embed(tokens, earlier, phase) * scale[..., None]


@FAULTS("export")
def numpy_in_forward():
    """A scale by the logarithm of the position is computed with numpy inside the forward pass: an exported program has
    the values (and so the length) of the example, or cannot be exported.
    Expected: torch.export fails or fixes the length, in this method."""
    return ModelUnderTest(faulty("numpy"))


@FAULTS("overlap")
def rewrapped_validation():
    """The validation file is a part of the training text with other line breaks (another edition of the same scenes):
    no line is equal, every sentence is.
    Expected: held-out text is in the training part."""
    draw, folder = random.Random(8), Path(mkdtemp())
    known = ["".join(draw.choices(ascii_lowercase, k=draw.randint(2, 9))) for _ in range(3000)]
    text = "\n".join(" ".join(draw.choices(known, k=draw.randint(5, 12))) for _ in range(1200))[:60000]
    words = text[20000:32000].split()
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 70:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    (folder / "train.txt").write_text(text)
    (folder / "valid.txt").write_text("\n".join([*lines, line]))
    data = TextConfig(path=str(folder), batch=4).build(32, Path(mkdtemp()))
    model = randomize(GPTConfig(vocabulary=data.vocabulary, context=32, layers=1, heads=2, width=32).build())
    return ModelUnderTest(model, data=data, tokenizer=data.tokenizer, task=LanguageTask())


CLASSES = {
    "ragged": RaggedPositions,
    "ngrams": CrossingNGrams,
    "positions": ContinuingPositions,
    "checkpoint": LosesTensor,
    "numpy": NumpyPositions,
}
