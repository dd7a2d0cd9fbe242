"""Decoding with sequence-to-sequence models."""

from __future__ import annotations

from torch import Tensor

from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.cached import CachedSeq2Seq
from regard.generate.constraints import Hypothesis, OutputConstraints
from regard.generate.decoder import Decoder
from regard.generate.sampler import Sampler, source_streams
from regard.generate.sampling import Sampling
from regard.models.base import Seq2SeqModel


def decode_seq2seq(
    model: Seq2SeqModel,
    source: Tensor,
    source_lengths: Tensor,
    constraints: OutputConstraints,
    options: BeamSearch | Sampling,
    count: int = 1,
    seed: int = 1,
) -> list[list[Hypothesis]]:
    """For each source [B, S] the ``count`` best hypotheses of beam search, or the different ones of ``count`` samples.

    The random numbers of a source follow from the seed, its own tokens and the number of the sample, and so do not
    depend on the rest of the batch.
    """
    if isinstance(options, BeamSearch):
        strategy = BeamSearcher(options, constraints, count)
    else:
        streams = [0] * len(source) * count if options.greedy else source_streams(source, source_lengths, count)
        strategy = Sampler(options, streams, constraints, samples=count, seed=seed)
    cached = CachedSeq2Seq(model, source, source_lengths, [constraints.begin], constraints.max_length)
    for _ in Decoder(cached, strategy, constraints.max_length):
        pass
    return strategy.hypotheses()
