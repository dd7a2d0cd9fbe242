"""Texts that are cut so short that what decides their class is lost, and labels that are not those of the file."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np

from regard.data import ClassesConfig, LabeledConfig, LabeledData
from regard.doctor import Findings
from regard.doctor.classifiers import WORDS, crossed, lift, naive_bayes, tail
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Array, Examples
from regard.errors import UserError

#: The share of tokens that reach a batch: below the first, if the rest is needed to distinguish the classes; below the
#: second, if it says nothing.
CUT, LITTLE = 0.75, 0.25
#: Texts that are read again, characters of them at most, and the chance that equally good ones differ so much.
TEXTS, CHARACTERS, CHANCE = 1000, 2**24, 1e-6
#: How much more of the labels is predictable from whole texts, from the share above the most frequent one.
MORE, USEFUL = 0.25, 0.3
#: Tokens of an example that are its own: one that has been decoded is in its text.
STRANGE, FEWEST = 0.1, 20


class Truncation(DataCheck):
    kind, description = "truncation", "most of the texts is cut off"

    def judge(self, examples: Examples) -> Findings:
        data, config = examples.data, self.run.experiment.data
        if not isinstance(data, LabeledData) or not data.tokens_given:
            return
        share = data.tokens_kept / data.tokens_given
        if share >= CUT:
            return
        keep = f", --data.keep {config.keep}" if isinstance(config, ClassesConfig) else ""
        evidence = f"{share:.0%} of the tokens of the training texts reach a batch: {data.tokens_kept:,} of "
        evidence += f"{data.tokens_given:,}; a row has {data.window} at most{keep}"
        cause = "texts are cut to --data.tokens or --model.context, and the rest is never read"
        if not isinstance(config, ClassesConfig):
            if share < LITTLE:
                yield self._cut(data, evidence, cause)
            return
        with suppress(UserError, OSError):
            whole, cut, labels = self._texts(config, data)
            if whole is not None and len(labels) >= 4 * FEWEST:
                right = [
                    float((crossed(naive_bayes, one, labels, examples.classes) == labels).mean())
                    for one in (whole, cut)
                ]
                all_of_it, kept = (lift(one, labels) for one in right)
                evidence += (
                    f"; a simple classifier is right in {right[1]:.0%} with what is left, and in {right[0]:.0%} "
                )
                evidence += "with the whole texts"
                needed = all_of_it > USEFUL and all_of_it - kept > MORE
                if needed and tail(len(labels), right[1] * len(labels), right[0]) < CHANCE:
                    yield self._cut(data, evidence, cause + "; what distinguishes the classes is in it")

    def _cut(self, data: LabeledData, evidence: str, cause: str) -> Any:
        settings = [
            "--data.tokens none",
            f"--model.context {4 * data.window} --data.tokens none",
            "--data.keep both",
            "--data.keep end",
        ]
        return self.finding("--data.tokens", evidence, cause, *settings)

    def _texts(self, config: LabeledConfig, data: LabeledData) -> tuple[Any, Any, Any]:
        """Counted words [R, WORDS] of some whole training texts and of their tokens, and their classes [R]."""
        parts = config.parts()
        if sum(len(one.text) for one in parts[0]) > CHARACTERS or len(parts[0]) != data.train.count:
            return None, None, np.zeros(0, np.int64)
        chosen = np.unique(np.linspace(0, len(parts[0]) - 1, TEXTS).astype(int)).tolist()
        rows = data.train.tokens
        cut = [
            data.tokenizer.decode(rows.tokens[rows.starts[n] : rows.starts[n] + rows.counts[n]].astype(np.int64))
            for n in chosen
        ]
        return words([parts[0][n].text for n in chosen]), words(cut), data.train.targets.tokens[chosen].astype(np.int64)


def words(texts: Sequence[str]) -> Array:
    """How often words occur in each text, by a hash of the word [R, WORDS]."""
    found = np.zeros((len(texts), WORDS), np.float32)
    for row, text in zip(found, texts, strict=True):
        np.add.at(row, [crc32(word.encode("utf-8", "replace")) % WORDS for word in re.findall(r"\w+", text.lower())], 1)
    return found
