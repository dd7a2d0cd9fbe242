"""One token after the other for each text, with a source: the likeliest (greedy), or one that is drawn."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from regard.generate.random import BLOCK, Draws, Noise
from regard.generate.sampling import Sampling
from regard.generate.seq2seq import Hypothesis, Rules, Sourced, latest, normaliser
from regard.generate.states import pick

LEAVE = 4  # sources leave the batch when at least one in so many is done


@torch.inference_mode()
def sample_seq2seq(
    model: Sourced,
    source: Tensor,
    source_lengths: Tensor,
    rules: Rules,
    sampling: Sampling,
    *,
    samples: int = 1,
    seed: int = 1,
) -> list[list[Hypothesis]]:
    """For each source [B, S] so many texts, best first; those that are alike count once.

    What is drawn for a source follows from the seed, its own tokens and the number of the sample: it is the same
    whatever else is in the batch, and has nothing to do with what is drawn for another source.
    """
    batch, rows = source.shape[0], source.shape[0] * samples
    state = model.start(batch, rules.most, source=source, source_lengths=source_lengths, beams=samples)
    token = source.new_full((rows, 1), rules.specials.begin)
    text = source.new_full((rows, rules.most), rules.specials.pad)
    place = torch.arange(rows, device=source.device)  # where the rows still in the batch stand in `text`
    streams = [0] * rows if sampling.greedy else streams_of(source, source_lengths, samples)
    noise, draws, sums, going = Noise(seed, streams), None, None, None
    for written in range(rules.most):
        logits, state = model.step(token, state)
        logits = latest(logits)
        if draws is None or sums is None or going is None:
            draws = Draws.start(rows, logits.shape[-1] if sampling.remembers else 0, source.device)
            sums, going = logits.new_zeros(rows), torch.ones(rows, dtype=torch.bool, device=source.device)
        if not sampling.greedy and written % BLOCK == 0:
            noise.fill(draws)
        total = normaliser(logits)
        tokens = sampling.choose(rules.apply(logits, written), draws)
        logprob = logits.gather(1, tokens[:, None])[:, 0] - total
        here = going[place]
        sums[place] += torch.where(here, logprob, 0)
        text[place, written] = torch.where(here, tokens, rules.specials.pad)
        going[place] = here & (tokens != rules.specials.end)
        token = tokens[:, None]
        open = going[place].view(-1, samples).any(1)
        left = int(open.sum())
        if not left:
            break
        if LEAVE * left <= (LEAVE - 1) * len(open):
            kept = open.nonzero()[:, 0]
            those = (kept[:, None] * samples + torch.arange(samples, device=kept.device)).flatten()
            state = state._replace(shared=pick(state.shared, kept), own=pick(state.own, those))
            place, token = place[those], token[those]
            noise.keep(those.tolist())
            draws = Draws(draws.noise[those], draws.place, draws.seen[those])
    assert sums is not None
    found = [
        rules.hypothesis([token for token in row if token != rules.specials.pad], value, value)
        for row, value in zip(text.tolist(), sums.tolist(), strict=True)
    ]
    return [ranked(found[first : first + samples]) for first in range(0, rows, samples)]


def streams_of(source: Tensor, lengths: Tensor, samples: int) -> list[int]:
    """A number for each row to draw by, made of its source's tokens and its place among the samples."""
    made = []
    for row, length in zip(source.tolist(), lengths.tolist(), strict=True):
        text = hashlib.blake2b(repr(row[:length]).encode(), digest_size=8)
        made += [(int.from_bytes(text.digest(), "big") + sample) % 2**64 for sample in range(samples)]
    return made


def ranked(found: list[Hypothesis]) -> list[Hypothesis]:
    """Best first, each text once."""
    different = {(tuple(one.tokens), one.ended): one for one in found}
    return sorted(different.values(), key=lambda one: -one.logprob)
