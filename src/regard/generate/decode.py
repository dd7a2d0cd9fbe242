"""Decoding, written once for every model that speaks ``start`` and ``step``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate.sampling import Sampling


class Steppable(Protocol):
    """A model that can be driven token by token."""

    def start(self, batch: int, capacity: int) -> Any: ...

    def step(self, tokens: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]: ...


@torch.no_grad()
def decode(
    model: Steppable,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    *,
    seed: int = 1,
    context: int,
    device: torch.device | str = "cpu",
) -> Iterator[list[int]]:
    """Yield ``count`` times the next token of every prompt, as they come.

    No token is conditioned on more than ``context`` tokens, the length the model was trained on: when the state is
    full, decoding goes on from a new one that holds the latest half.
    """
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise UserError("a prompt is empty; give at least one character")
    noise = torch.Generator().manual_seed(seed)
    texts = [list(prompt)[-context:] for prompt in prompts]
    made = 0
    while made < count:
        longest = max(map(len, texts))
        state = model.start(len(texts), min(context, longest + count - made - 1))
        logits, state = model.step(*_padded(texts, device, state))
        rows = torch.arange(len(texts), device=logits.device)
        ends = torch.tensor([len(text) - 1 for text in texts], device=logits.device)
        latest = logits[rows, ends]
        for room in range(context - longest, -1, -1):
            tokens = sampling.choose(latest, noise)
            chosen = tokens.tolist()
            for text, token in zip(texts, chosen, strict=True):
                text.append(token)
            yield chosen
            made += 1
            if made == count:
                return
            if room:
                logits, state = model.step(tokens[:, None], state)
                latest = logits[:, -1]
        texts = [text[-max(1, context // 2) :] for text in texts]


def _padded(texts: list[list[int]], device: torch.device | str, state: Any) -> tuple[Tensor, Any, Tensor | None]:
    """Prompts as one batch; lengths only if they differ, since plain rows have the faster path."""
    lengths = [len(text) for text in texts]
    tokens = torch.tensor([text + [0] * (max(lengths) - len(text)) for text in texts], device=device)
    same = len(set(lengths)) == 1
    return tokens, state, None if same else torch.tensor(lengths, device=device)
