"""One token at a time: the distribution that `regard generate` draws from, and what it draws.

Logits go through the same `Sampling`, and the p-th token is decided by the p-th number of the seed's stream: a text
that is written here step by step is the one that `regard generate` writes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate import Draws, Sampling
from regard.generate.random import BLOCK, Noise
from regard.generate.sample_seq2seq import streams_of
from regard.generate.seq2seq import Rules, latest
from regard.look.capture.trace import at_rest
from regard.look.views.reading import spelled

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials

TOLD = 50  # of the likeliest tokens
MOST = 200  # tokens of one answer
FURTHEST = 2**16  # draws from a stream


class Writing:
    """A text that grows: its tokens, what the model says of the next one, and what it remembers."""

    def __init__(self, model: Any, context: int, tokens: list[int], room: int):
        self.model, self.context = model, context
        self.device = next(model.parameters()).device
        self.tokens = list(tokens)
        self._read(tokens[-context:], room)

    def _read(self, tokens: list[int], room: int) -> None:
        self.state = self.model.start(1, min(self.context, len(tokens) + room))
        logits, self.state = self.model.step(torch.tensor([tokens], device=self.device), self.state, last=True)
        self.logits = latest(logits)  # [1, V]
        self.held = len(tokens)

    def take(self, token: int, room: int) -> None:
        """Go on with this token; a full context goes on from its latest half, as in `generate.Decoding`."""
        self.tokens.append(token)
        if self.held == self.context:
            self._read(self.tokens[-max(1, self.context // 2) :], room)
            return
        logits, self.state = self.model.step(torch.tensor([[token]], device=self.device), self.state)
        self.logits = latest(logits)
        self.held += 1

    def remembered(self) -> dict[str, int]:
        """What the tokens so far take up, and how many there may be."""
        return {"bytes": nbytes(self.model.start(1, self.held)), "tokens": self.held, "capacity": self.context}


class Translating:
    """The same for a translation, of which some is written already."""

    def __init__(self, model: Any, context: int, source: list[int], tokens: list[int], rules: Rules):
        self.model, self.context, self.rules = model, context, rules
        self.source = torch.tensor([source], device=next(model.parameters()).device)
        self.lengths = torch.tensor([len(source)], device=self.source.device)
        if len(tokens) >= context:
            raise UserError(f"a translation has at most {context} tokens in this model, and {len(tokens)} are written")
        self.state = model.start(1, context, source=self.source, source_lengths=self.lengths)
        self.tokens: list[int] = []
        self._step([rules.specials.begin, *tokens])

    def _step(self, tokens: list[int]) -> None:
        logits, self.state = self.model.step(torch.tensor([tokens], device=self.source.device), self.state)
        self.tokens += tokens
        self.logits = self.rules.apply(latest(logits), len(self.tokens) - 1)

    def take(self, token: int, room: int) -> None:
        """Go on with this token."""
        self._step([token])

    def remembered(self) -> dict[str, int]:
        """What the source and the tokens so far take up."""
        return {"bytes": nbytes(self.state), "tokens": len(self.tokens), "capacity": self.context}


def step(
    writing: Writing | Translating,
    tokenizer: Tokenizer,
    specials: Specials | None,
    sampling: Sampling,
    *,
    count: int,
    seed: int,
    position: int,
) -> dict[str, Any]:
    """What comes next, and ``count`` tokens drawn from there; ``position`` were drawn before with this seed."""
    if not 1 <= count <= MOST:
        raise UserError(f"1 to {MOST} tokens are drawn at once, not {count}")
    if not 0 <= position < FURTHEST:
        raise UserError(f"the position in a seed's draws is 0 to {FURTHEST - 1}, not {position}")
    with at_rest(writing.model):
        before = spelled(tokenizer, specials, writing.tokens)
        told = {"tokens": before, **distribution(writing.logits, sampling, tokenizer, specials, writing.tokens)}
        told["cache"] = writing.remembered()
        drawn = _draw(writing, specials, sampling, count, seed, position)
    texts = spelled(tokenizer, specials, drawn)
    written = [{"token": token, "text": text} for token, text in zip(drawn, texts, strict=True)]
    return {**told, "sampled": written[0], "continuation": written}


def _draw(
    writing: Writing | Translating, specials: Specials | None, sampling: Sampling, count: int, seed: int, position: int
) -> list[int]:
    draws = Draws.start(1, writing.logits.shape[-1] if sampling.remembers else 0, writing.logits.device)
    stream = 0 if isinstance(writing, Writing) else streams_of(writing.source, writing.lengths, 1)[0]
    noise = Noise(seed, [stream])
    if sampling.remembers:
        draws.seen[0, writing.tokens] = True
    for _ in range(position // BLOCK):
        noise.fill(draws)
    drawn: list[int] = []
    for number in range(position, position + count):
        if number % BLOCK == 0 or not drawn:
            noise.fill(draws)
            draws.place.fill_(number % BLOCK)
        drawn.append(int(sampling.choose(writing.logits, draws)))
        ended = specials is not None and (drawn[-1] == specials.end or len(writing.tokens) >= writing.context)
        if ended or len(drawn) == count:
            break
        writing.take(drawn[-1], count - len(drawn))
    return drawn


def distribution(
    logits: Tensor, sampling: Sampling, tokenizer: Tokenizer, specials: Specials | None, tokens: list[int]
) -> dict[str, Any]:
    """The likeliest next tokens: as the model has them, and after temperature and cuts. Logits [1, V]."""
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[0, tokens] = True
    shaped = sampling.shape(logits, seen)
    chosen = shaped.softmax(-1)[0]
    if sampling.greedy:
        chosen = torch.zeros_like(chosen).index_fill_(0, shaped.argmax(-1), 1.0)
    plain = logits.softmax(-1)[0]
    best = logits[0].topk(min(TOLD, logits.shape[-1])).indices
    rows = zip(
        best.tolist(),
        spelled(tokenizer, specials, best.tolist()),
        *(x[best].tolist() for x in (logits[0], plain, chosen)),
        strict=True,
    )
    names = ("token", "text", "logit", "probability", "sampling_probability")
    told = [{**dict(zip(names, row, strict=True)), "kept": row[4] > 0} for row in rows]
    entropies = {"entropy": plain, "sampling_entropy": chosen}
    return {"candidates": told, **{name: float(torch.special.entr(p).sum()) for name, p in entropies.items()}}


def nbytes(state: Any) -> int:
    """The bytes of all tensors in a state, however deep they lie."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(map(nbytes, state)) if isinstance(state, tuple) else 0
