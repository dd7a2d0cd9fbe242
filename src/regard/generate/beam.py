"""Beam search, batched over prompts.

At each token the candidates of a prompt are the continuations of its beams, and the best ``2 * beams`` of them count.
Those among the first ``beams`` that end are finished hypotheses; the best ``beams`` that do not end are the next beams.
Finished hypotheses are ranked by their log-probability over a length penalty (`BeamSearch.weight`). A prompt is
finished when it has ``beams`` hypotheses and, unless ``early``, no beam would beat the worst of them if it ended here.
This is the search of the `transformers` library (length_penalty, early_stopping), and it finds the same hypotheses.

What makes it fast: the best of V tokens are found among the maxima of blocks of tokens, without sorting; a beam keeps
its row where possible, so that only the rows of discarded beams are copied; finished prompts leave the batch.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from regard.config import option
from regard.errors import UserError
from regard.generate.constraints import Hypothesis, OutputConstraints, logsumexp
from regard.generate.decoder import DecodingStep, Strategy, select_rows, write_rows
from regard.generate.sampling import NEVER, in_float32

BLOCK = 64  # tokens that are represented by their maximum


@dataclass(frozen=True)
class BeamSearch:
    """Parameters of beam search."""

    beams: int = option(5, "how many partial sequences are kept per prompt")
    penalty: float = option(1.0, "length penalty: 0 none, above 1 favors long sequences")
    formula: Literal["mean", "gnmt"] = option("mean", "divide by n^penalty (mean), or ((5 + n) / 6)^penalty (gnmt)")
    early: bool = option(False, "stop at as many finished hypotheses as beams, even if a better one might follow")

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1, not {self.beams}")

    def weight(self, length: int) -> float:
        """The divisor of the log-probability of ``length`` tokens, the end token included.

        ``mean`` is n^α, with α = 1 the mean log-probability of a token; ``gnmt`` is Wu et al. 2016, eq. 14.
        """
        return (length if self.formula == "mean" else (5 + length) / 6) ** self.penalty


class Candidates(NamedTuple):
    """Continuations [B, J] of B prompts, best first."""

    logprobs: Tensor
    parents: Tensor  # the beam that each continues
    tokens: Tensor


class BeamState(NamedTuple):
    """The beams and the finished hypotheses of B prompts with K beams each; every tensor has the prompts first."""

    logprobs: Tensor  # [B, K], of the beams; minus infinity: there is none
    tokens: Tensor  # [B, K, max_length]
    finished_scores: Tensor  # [B, K], best first; minus infinity: there is none yet
    finished_logprobs: Tensor  # [B, K]
    finished_lengths: Tensor  # [B, K]
    finished_tokens: Tensor  # [B, K, max_length]
    active: Tensor  # [B], whether the search continues

    @classmethod
    def start(cls, prompts: int, beams: int, length: int, like: Tensor) -> Self:
        """Empty sequences. As the beams of a prompt are still equal, only one of them counts."""
        none = like.new_full((prompts, beams), NEVER)
        tokens = torch.zeros(prompts, beams, length, dtype=torch.long, device=like.device)
        first = none.index_fill(1, tokens.new_zeros(1), 0.0)
        active = torch.ones(prompts, dtype=torch.bool, device=like.device)
        return cls(first, tokens, none, none.clone(), tokens[:, :, 0].clone(), tokens.clone(), active)


class BeamSearcher(Strategy):
    """Beam search as a strategy of the `Decoder`.

    After each step, for observers: ``state`` holds the beams, ``candidates`` [B, K] the best continuations, and
    ``ended`` [B, K] which of those became finished hypotheses.
    """

    def __init__(self, search: BeamSearch, constraints: OutputConstraints, nbest: int = 1):
        if not 1 <= nbest <= search.beams:
            raise UserError(
                f"a search with {search.beams} beams finds 1 to {search.beams} texts, not {nbest}; use more beams"
            )
        self.search, self.constraints, self.beams, self.nbest = search, constraints, search.beams, nbest

    def start(self, prompts: int, logits: Tensor) -> None:
        self._prompts = torch.arange(prompts, device=logits.device)  # those still in the batch
        self.state = BeamState.start(prompts, self.beams, self.constraints.max_length, in_float32(logits))
        self._results = select_rows(self.state, self._prompts)

    def pick(self, logits: Tensor, position: int) -> DecodingStep:
        logits = in_float32(logits)
        total = logsumexp(logits).view(-1, self.beams)
        logits = self.constraints.mask(logits, position)
        per_prompt = logits.view(*total.shape, -1)
        parents = self._advance(top_candidates(per_prompt, total, self.state.logprobs, 2 * self.beams), position + 1)
        tokens = self.state.tokens[:, :, position].flatten()
        # Before the first token the rows of a prompt are equal, so there is nothing to reorder.
        rows = None
        if position:
            rows = (parents + torch.arange(len(parents), device=parents.device)[:, None] * self.beams).flatten()
        active = self.state.active if self.constraints.may_end(position) else None
        return DecodingStep(logits, tokens, rows, active)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        write_rows(self._results, self._prompts, self.state)
        self.state, self._prompts = select_rows(self.state, prompts), self._prompts[prompts]

    def _advance(self, candidates: Candidates, length: int) -> Tensor:
        """Take the candidates as the ``length``-th token; return the old beam [B, K] that each new beam continues."""
        self.candidates = best = Candidates(*(part[:, : self.beams] for part in candidates))
        if length == self.constraints.max_length:
            self._finish(best, torch.ones_like(best.tokens, dtype=torch.bool), length)
            self.state = self.state._replace(logprobs=torch.full_like(best.logprobs, NEVER))
            return best.parents
        ends = self._ends(candidates, length)
        if ends is None:
            self.ended, chosen = torch.zeros_like(best.tokens, dtype=torch.bool), best
        else:
            self._finish(best, ends[:, : self.beams], length)
            order = candidates.logprobs.masked_fill(ends, NEVER).topk(self.beams)
            chosen = Candidates(order.values, *(part.gather(1, order.indices) for part in candidates[1:]))
        order = assign_rows(chosen.parents)
        logprobs, parents, tokens = (part.gather(1, order) for part in chosen)
        top = logprobs.amax(1)
        worst = self.state.finished_scores[:, -1]
        finished = worst > NEVER
        if not self.search.early:
            finished &= top / self.search.weight(length) <= worst
        self.state = self.state._replace(
            logprobs=logprobs,
            tokens=append_tokens(self.state.tokens, parents, tokens, length),
            active=self.state.active & ~finished & (top > NEVER),
        )
        return parents

    def _ends(self, candidates: Candidates, length: int) -> Tensor | None:
        """The candidates [B, J] that end with the ``length``-th token; None: none may."""
        constraints = self.constraints
        if not constraints.may_end(length - 1):
            return None
        if constraints.stop is None:
            return candidates.tokens == constraints.end
        text = append_tokens(self.state.tokens, candidates.parents, candidates.tokens, length)
        latest = text[:, :, max(0, length - constraints.stop.window) : length].tolist()
        ends = [[constraints.stop(tokens) for tokens in prompt] for prompt in latest]
        return torch.tensor(ends, device=text.device)

    def _finish(self, best: Candidates, ends: Tensor, length: int) -> None:
        """Rank the candidates [B, K] that end among the finished hypotheses; the best K of both stay."""
        state = self.state
        self.ended = ends & (best.logprobs > NEVER) & state.active[:, None]
        scores = (best.logprobs / self.search.weight(length)).masked_fill(~self.ended, NEVER)
        ranked, order = torch.cat((state.finished_scores, scores), 1).topk(self.beams)
        text = append_tokens(state.tokens, best.parents, best.tokens, length)
        lengths = torch.full_like(best.tokens, length)
        self.state = state._replace(
            finished_scores=ranked,
            finished_logprobs=torch.cat((state.finished_logprobs, best.logprobs), 1).gather(1, order),
            finished_lengths=torch.cat((state.finished_lengths, lengths), 1).gather(1, order),
            finished_tokens=gather_beams(torch.cat((state.finished_tokens, text), 1), order),
        )

    @torch.inference_mode()
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Per prompt the ``nbest`` best hypotheses, or fewer if there are fewer, best first."""
        write_rows(self._results, self._prompts, self.state)
        columns = [part[:, : self.nbest].tolist() for part in self._results[2:6]]
        return [
            [
                self.constraints.hypothesis(tokens[:length], score, logprob)
                for score, logprob, length, tokens in zip(*prompt, strict=True)
                if score > NEVER
            ]
            for prompt in zip(*columns, strict=True)
        ]


def top_candidates(logits: Tensor, total: Tensor, logprobs: Tensor, count: int) -> Candidates:
    """The best ``count`` continuations of each prompt, best first.

    ``logits`` [B, K, V] with their logsumexp ``total`` [B, K], of beams with ``logprobs`` [B, K]. Exact: the best
    ``count`` tokens are in the ``count`` blocks with the greatest maxima, since (x - total) + logprob increases with x.
    """
    beams, vocabulary = logits.shape[1:]
    total, logprobs = total[..., None], logprobs[..., None]
    width = BLOCK if vocabulary > 8 * BLOCK else 1
    whole = vocabulary // width * width
    tops = logits[..., :whole].unflatten(-1, (-1, width)).amax(-1) if width > 1 else logits
    if whole < vocabulary:
        tops = torch.cat((tops, logits[..., whole:].amax(-1, keepdim=True)), -1)
    blocks = tops.shape[-1]
    count = min(count, beams * blocks)
    best = ((tops - total) + logprobs).flatten(1).topk(count)
    if width == 1:
        return Candidates(best.values, best.indices // vocabulary, best.indices % vocabulary)
    parent, block = best.indices // blocks, best.indices % blocks  # [B, count]
    tokens = block[..., None] * width + torch.arange(width, device=logits.device)  # [B, count, width]
    place = (parent * vocabulary)[..., None] + tokens.clamp(max=vocabulary - 1)
    values = logits.flatten(1).gather(1, place.flatten(1)).view(place.shape)
    values = (values - gather_beams(total, parent)) + gather_beams(logprobs, parent)
    best = values.masked_fill(tokens >= vocabulary, NEVER).flatten(1).topk(count)
    return Candidates(best.values, parent.gather(1, best.indices // width), tokens.flatten(1).gather(1, best.indices))


def append_tokens(text: Tensor, parents: Tensor, tokens: Tensor, length: int) -> Tensor:
    """The sequences [B, J, N] of the parents [B, J], each with its ``length``-th token."""
    text = gather_beams(text, parents)
    text[:, :, length - 1] = tokens
    return text


def assign_rows(parents: Tensor) -> Tensor:
    """Which candidate [B, K] gets which row: the first one of each parent its parent's row, the others a free one.

    >>> assign_rows(torch.tensor([[2, 2, 0]]))
    tensor([[2, 1, 0]])
    """
    beams = parents.shape[1]
    later = (parents[:, :, None] == parents[:, None, :]).tril(-1).any(-1)
    free = torch.zeros_like(parents).scatter_(1, parents, 1).argsort(dim=1, stable=True)
    row = torch.where(later, free.gather(1, (later.cumsum(1) - 1).clamp_(min=0)), parents)
    return torch.empty_like(parents).scatter_(1, row, torch.arange(beams, device=parents.device).expand_as(row))


def gather_beams(values: Tensor, beams: Tensor) -> Tensor:
    """values [B, K, N] of the beams [B, J]: [B, J, N]."""
    return values.gather(1, beams[..., None].expand(-1, -1, values.shape[-1]))
