"""Sampling and greedy decoding as strategies of the `Decoder`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.cached import CachedLanguageModel
from regard.generate.constraints import Hypothesis, OutputConstraints, logsumexp
from regard.generate.decoder import Decoder, DecodingStep, Strategy
from regard.generate.sampling import BLOCK, PhiloxStreams, SamplerState, Sampling, in_float32
from regard.models.base import LanguageModel


class Sampler(Strategy):
    """Samples the next token of each row with the random numbers of the stream of that row.

    With ``constraints`` the sequences may end, and ``hypotheses`` returns them with their log-probabilities. Each
    prompt has ``samples`` rows. ``offset`` numbers of each stream have been used before. ``seen`` are the tokens of
    each row that the repetition penalty counts as part of the text. ``streams`` and ``seen`` go on with those of the
    prompts that wait.
    """

    def __init__(
        self,
        sampling: Sampling,
        streams: Sequence[int],
        constraints: OutputConstraints | None = None,
        *,
        samples: int = 1,
        seed: int = 1,
        offset: int = 0,
        seen: Sequence[Sequence[int]] = (),
    ):
        self.sampling, self.constraints, self.beams = sampling, constraints, samples
        self._offset, self._seen, self._streams_of, self._seed = offset, seen, streams, seed

    def start(self, prompts: int, logits: Tensor) -> None:
        rows, device = len(logits), logits.device
        vocabulary = logits.shape[-1] if self.sampling.penalizes else 0
        self._state = SamplerState.start(rows, vocabulary, device, self._offset)
        self._streams = PhiloxStreams(self._seed, self._streams_of[:rows], self._offset)
        self._next = self._offset  # the position of the next number
        if self.sampling.penalizes:
            for row in range(min(rows, len(self._seen))):
                self._mark_seen(row, row)
        if self.constraints is not None:
            self._rows = torch.arange(rows, device=device)  # the rows still in the batch
            self._tokens = torch.zeros(rows, self.constraints.max_length, dtype=torch.long, device=device)
            self._lengths = torch.zeros_like(self._rows)
            self._logprobs = torch.zeros(rows, dtype=in_float32(logits).dtype, device=device)
            self._active = torch.ones(rows, dtype=torch.bool, device=device)

    def _mark_seen(self, row: int, prompt: int) -> None:
        """The repetition penalty counts the tokens of a prompt, and no others, as part of the row's text."""
        tokens = torch.tensor(sorted(set(self._seen[prompt])), device=self._state.seen.device)
        self._state.seen[row] = False
        self._state.seen[row, tokens] = True

    def pick(self, logits: Tensor, position: int) -> DecodingStep:
        if not self.sampling.greedy and (position == 0 or self._next % BLOCK == 0):
            self._streams.fill(self._state)
        self._next += 1
        if self.constraints is None:
            return DecodingStep(logits, self.sampling.sample(logits, self._state))
        logits = in_float32(logits)
        total = logsumexp(logits)
        tokens = self.sampling.sample(self.constraints.mask(logits, position), self._state)
        rows, active = self._rows, self._active[self._rows]
        self._logprobs[rows] += torch.where(active, logits.gather(1, tokens[:, None])[:, 0] - total, 0)
        self._tokens[rows, position] = tokens
        self._lengths[rows] += active
        if not self.constraints.may_end(position):
            return DecodingStep(logits, tokens)
        self._active[rows] = active & (tokens != self.constraints.end)
        return DecodingStep(logits, tokens, active=self._active[rows].view(-1, self.beams).any(1))

    def admit(self, rows: Sequence[int], prompts: Sequence[int]) -> None:
        if self.constraints is not None:
            raise NotImplementedError("rows with output constraints all begin at the same position")
        for row, prompt in zip(rows, prompts, strict=True):
            if not self.sampling.greedy:
                self._streams.replace(self._state, row, self._streams_of[prompt], self._next)
            if self.sampling.penalizes:
                self._mark_seen(row, prompt)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        self._streams.keep(rows.tolist())
        self._state = SamplerState(self._state.uniforms[rows], self._state.position, self._state.seen[rows])
        if self.constraints is not None:
            self._rows = self._rows[rows]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Per prompt the different sequences that were sampled, best first."""
        assert self.constraints is not None
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
