"""Decoding: one loop with sampling or beam search, for language models and sequence-to-sequence models."""

from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.cached import CachedLanguageModel, CachedSeq2Seq
from regard.generate.constraints import Hypothesis, OutputConstraints
from regard.generate.decoder import Decoder, DecodingStep
from regard.generate.sampler import Sampler, sampling_decoder
from regard.generate.sampling import Sampling
from regard.generate.text import GeneratedText, Prompt, TextGenerator
from regard.generate.translation import decode_seq2seq
