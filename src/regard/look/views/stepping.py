"""One token at a time: the distribution that `regard generate` samples from, and the sampled tokens.

The logits pass through the same `Sampling`, and the p-th number of the seed's stream decides the p-th token: text that
is sampled here step by step is the text that `regard generate` samples at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate.cached import CachedLanguageModel, CachedSeq2Seq
from regard.generate.constraints import OutputConstraints
from regard.generate.decoder import Decoder, DecodingStep
from regard.generate.sampler import Sampler
from regard.generate.sampling import Sampling, in_float32
from regard.generate.translation import source_streams
from regard.look.capture.trace import evaluation_mode
from regard.look.views.reading import JsonObject, token_texts
from regard.models.base import LanguageModel, Seq2SeqModel

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials

LISTED = 50  # of the likeliest tokens
MAX_TOKENS = 200  # per call
MAX_POSITION = 2**16  # in a random stream


class Draw(NamedTuple):
    """How many tokens to sample, and which numbers of which seed decide them."""

    sampling: Sampling
    count: int = 1
    seed: int = 1
    position: int = 0  # numbers of the stream that were used before

    def check(self) -> None:
        """Refuse counts and positions out of range."""
        if not 1 <= self.count <= MAX_TOKENS:
            raise UserError(f"1 to {MAX_TOKENS} tokens are drawn at once, not {self.count}")
        if not 0 <= self.position < MAX_POSITION:
            raise UserError(f"the position in a seed's draws is 0 to {MAX_POSITION - 1}, not {self.position}")


def continue_text(model: LanguageModel, tokens: list[int], draw: Draw, tokenizer: Tokenizer) -> JsonObject:
    """The next-token distribution after a text, the size of its KV cache, and the sampled tokens."""
    draw.check()
    context = model.config.context
    used = min(len(tokens), context)
    with evaluation_mode(model):
        cached = CachedLanguageModel(model, [tokens], draw.count, graphs=False)
        sampler = Sampler(draw.sampling, [0], seed=draw.seed, offset=draw.position, seen=[tokens])
        state = {"bytes": nbytes(model.start(1, used)), "tokens": used, "capacity": context}
        steps: list[DecodingStep] = []
        sampled = [int(token) for token in Decoder(cached, sampler, draw.count, [steps.append])]
        return _described(tokenizer, None, tokens, steps[0].logits, draw.sampling, sampled, state)


def continue_translation(
    model: Seq2SeqModel, source: Tensor, tokens: list[int], draw: Draw, tokenizer: Tokenizer, specials: Specials
) -> JsonObject:
    """The same for a translation of a source [1, S], of which ``tokens`` are given."""
    draw.check()
    context = model.config.context
    if len(tokens) >= context:
        raise UserError(f"a translation has at most {context} tokens in this model, and {len(tokens)} are given")
    prefix = [specials.begin, *tokens]
    length = min(draw.count, context - len(tokens))
    with evaluation_mode(model):
        lengths = source.new_tensor([source.shape[1]])
        cached = CachedSeq2Seq(model, source, lengths, prefix, context)
        sampler = Sampler(
            draw.sampling,
            source_streams(source, lengths, 1),
            OutputConstraints.of(specials, 0, length),
            seed=draw.seed,
            offset=draw.position,
            seen=[prefix],
        )
        steps: list[DecodingStep] = []
        decoder = Decoder(cached, sampler, length, [steps.append])
        state = {"bytes": nbytes(cached.state), "tokens": len(prefix), "capacity": context}
        sampled = [int(token) for token in decoder]
        return _described(tokenizer, specials, prefix, steps[0].logits, draw.sampling, sampled, state)


def _described(
    tokenizer: Tokenizer,
    specials: Specials | None,
    tokens: list[int],
    logits: Tensor,
    sampling: Sampling,
    sampled: list[int],
    state: dict[str, int],
) -> JsonObject:
    texts = token_texts(tokenizer, specials, sampled)
    written = [{"token": token, "text": text} for token, text in zip(sampled, texts, strict=True)]
    return {
        "tokens": token_texts(tokenizer, specials, tokens),
        **distribution(logits, sampling, tokenizer, specials, tokens),
        "cache": state,
        "sampled": written[0],
        "continuation": written,
    }


def distribution(
    logits: Tensor, sampling: Sampling, tokenizer: Tokenizer, specials: Specials | None, tokens: list[int]
) -> JsonObject:
    """The likeliest next tokens: their probabilities before and after the logits processors. Logits [1, V]."""
    logits = in_float32(logits)
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[0, tokens] = True
    processed = sampling.process(logits, seen)
    chosen = processed.softmax(-1)[0]
    if sampling.greedy:
        chosen = torch.zeros_like(chosen).index_fill_(0, processed.argmax(-1), 1.0)
    plain = logits.softmax(-1)[0]
    best = logits[0].topk(min(LISTED, logits.shape[-1])).indices
    rows = zip(
        best.tolist(),
        token_texts(tokenizer, specials, best.tolist()),
        *(x[best].tolist() for x in (logits[0], plain, chosen)),
        strict=True,
    )
    names = ("token", "text", "logit", "probability", "sampling_probability")
    likeliest = [{**dict(zip(names, row, strict=True)), "kept": row[4] > 0} for row in rows]
    entropies = {"entropy": plain, "sampling_entropy": chosen}
    return {"candidates": likeliest, **{name: float(torch.special.entr(p).sum()) for name, p in entropies.items()}}


def nbytes(state: Any) -> int:
    """The bytes of all tensors in a state, however deep."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(map(nbytes, state)) if isinstance(state, tuple) else 0
