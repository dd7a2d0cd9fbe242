"""Sampling and greedy decoding as strategies of the `Decoder`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.cached import CachedLanguageModel, CachedSeq2Seq
from regard.generate.constraints import Hypothesis, OutputConstraints, logsumexp
from regard.generate.decoder import Decoder, DecodingStep, Strategy
from regard.generate.philox import BLOCK, PhiloxStreams, SamplerState
from regard.generate.sampling import Sampling, in_float32
from regard.models.base import LanguageModel, Seq2SeqModel


class Sampler(Strategy):
    """Samples the next token of each row from a random stream of its own.

    ``offset`` numbers of each stream have been used before. ``seen`` are the tokens per row that the repetition penalty
    counts as part of the text.
    """

    def __init__(
        self,
        sampling: Sampling,
        streams: Sequence[int],
        *,
        seed: int = 1,
        offset: int = 0,
        seen: Sequence[Sequence[int]] = (),
    ):
        self.sampling, self._offset, self._seen = sampling, offset, seen
        self._streams = PhiloxStreams(seed, streams, offset)

    def start(self, prompts: int, logits: Tensor) -> None:
        vocabulary = logits.shape[-1] if self.sampling.penalizes else 0
        self._state = SamplerState.start(len(logits), vocabulary, logits.device, self._offset)
        if self.sampling.penalizes:
            for row, tokens in zip(self._state.seen, self._seen, strict=False):
                row[torch.tensor(sorted(set(tokens)), device=logits.device)] = True

    def pick(self, logits: Tensor, position: int) -> DecodingStep:
        if not self.sampling.greedy and (position == 0 or (self._offset + position) % BLOCK == 0):
            self._streams.fill(self._state)
        return DecodingStep(logits, self.sampling.sample(logits, self._state))

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        self._streams.keep(rows.tolist())
        self._state = SamplerState(self._state.uniforms[rows], self._state.position, self._state.seen[rows])


class HypothesisSampler(Sampler):
    """Samples ``samples`` sequences per prompt within constraints, with their log-probabilities."""

    def __init__(
        self,
        sampling: Sampling,
        streams: Sequence[int],
        constraints: OutputConstraints,
        *,
        samples: int = 1,
        seed: int = 1,
        offset: int = 0,
        seen: Sequence[Sequence[int]] = (),
    ):
        super().__init__(sampling, streams, seed=seed, offset=offset, seen=seen)
        self.beams, self.constraints = samples, constraints

    def start(self, prompts: int, logits: Tensor) -> None:
        super().start(prompts, logits)
        rows, device = len(logits), logits.device
        self._rows = torch.arange(rows, device=device)  # the rows still in the batch
        self._tokens = torch.zeros(rows, self.constraints.max_length, dtype=torch.long, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(rows, dtype=in_float32(logits).dtype, device=device)
        self._active = torch.ones(rows, dtype=torch.bool, device=device)

    def pick(self, logits: Tensor, position: int) -> DecodingStep:
        logits = in_float32(logits)
        total = logsumexp(logits)
        step = super().pick(self.constraints.mask(logits, position), position)
        logprobs = logits.gather(1, step.tokens[:, None])[:, 0] - total
        rows, active = self._rows, self._active[self._rows]
        self._logprobs[rows] += torch.where(active, logprobs, 0)
        self._tokens[rows, position] = step.tokens
        self._lengths[rows] += active
        if self.constraints.may_end(position):
            self._active[rows] = active & (step.tokens != self.constraints.end)
            step.active = self._active[rows].view(-1, self.beams).any(1)
        return step

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        super().keep(prompts, rows)
        self._rows = self._rows[rows]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Per prompt the different sequences that were sampled, best first."""
        columns = (self._tokens.tolist(), self._lengths.tolist(), self._logprobs.tolist())
        sampled = [self.constraints.hypothesis(row[:n], p, p) for row, n, p in zip(*columns, strict=True)]
        groups = (sampled[first : first + self.beams] for first in range(0, len(sampled), self.beams))
        unique = ({(*one.tokens, one.ended): one for one in group}.values() for group in groups)
        return [sorted(group, key=lambda one: -one.logprob) for group in unique]


def sampling_decoder(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    length: int,
    sampling: Sampling,
    *,
    seed: int = 1,
    streams: Sequence[int] | None = None,
    graphs: bool = True,
    compiled: bool = False,
) -> Decoder:
    """A decoder that samples ``length`` tokens after each prompt. Rows of one stream use the same random numbers."""
    cached = CachedLanguageModel(model, prompts, length, graphs=graphs, compiled=compiled)
    sampler = Sampler(sampling, [0] * len(prompts) if streams is None else streams, seed=seed, seen=prompts)
    return Decoder(cached, sampler, length)


def sample_seq2seq(
    model: Seq2SeqModel,
    source: Tensor,
    source_lengths: Tensor,
    constraints: OutputConstraints,
    sampling: Sampling,
    *,
    samples: int = 1,
    seed: int = 1,
) -> list[list[Hypothesis]]:
    """For each source [B, S] the different targets among ``samples``, best first.

    The random numbers of a source follow from the seed, its own tokens and the number of the sample, and so do not
    depend on the rest of the batch.
    """
    streams = [0] * len(source) * samples if sampling.greedy else source_streams(source, source_lengths, samples)
    sampler = HypothesisSampler(sampling, streams, constraints, samples=samples, seed=seed)
    cached = CachedSeq2Seq(model, source, source_lengths, [constraints.begin], constraints.max_length)
    for _ in Decoder(cached, sampler, constraints.max_length):
        pass
    return sampler.hypotheses()


def source_streams(source: Tensor, lengths: Tensor, samples: int) -> list[int]:
    """The random stream of each row: a hash of its source's tokens, plus the number of the sample."""
    streams = []
    for row, length in zip(source.tolist(), lengths.tolist(), strict=True):
        digest = hashlib.blake2b(repr(row[:length]).encode(), digest_size=8).digest()
        streams += [(int.from_bytes(digest, "big") + sample) % 2**64 for sample in range(samples)]
    return streams
