"""Decoding, written once for every model that speaks ``start`` and ``step``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate.random import BLOCK, Draws, Noise
from regard.generate.sampling import Sampling
from regard.generate.states import pick, put

FEW_TOKENS = 16  # below, a graph is not worth its capture


class Steppable(Protocol):
    """A model that can be driven token by token. `states` says what it may keep in its state."""

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> Any: ...

    def step(
        self, tokens: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, Any]: ...


class Decoding:
    """Texts that a model goes on with, each by one token at a time.

    No token is conditioned on more than ``context`` tokens, the length the model was trained on. A prompt is read from
    its end; a text that has filled the context goes on from its latest half. Each row does so at its own time, so
    what is written does not depend on the other rows. Rows with the same prompt share its reading.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Steppable,
        prompts: Sequence[Sequence[int]],
        count: int,
        sampling: Sampling,
        *,
        seed: int = 1,
        streams: Sequence[int] | None = None,
        context: int,
        device: torch.device | str = "cpu",
        graphs: bool = True,
        compiled: bool = False,
    ):
        """``count`` tokens will be written. ``streams`` tell apart rows that are to draw differently.

        On a GPU a step is a CUDA graph, unless ``graphs`` is False; ``compiled`` compiles it first.
        """
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise UserError("a prompt is empty; give at least one character")
        self.model, self.sampling, self.context, self.count = model, sampling, context, count
        self.made = 0  # tokens written
        read = [tuple(prompt[-context:]) for prompt in prompts]
        lengths = [len(text) for text in read]
        self._longest = max(lengths)
        # Compiled for the whole context, so that every text finds the same code; the memory's empty part costs little.
        self._capacity = context if compiled else min(context, self._longest + count - 1)
        self._due = [context - length for length in lengths]  # at which `made` each row has filled the context
        # Prompts end in one column, so that each step writes one column.
        texts = [[0] * (self._longest - len(text)) + list(text) for text in read]
        self._text = torch.zeros(len(texts), self._longest + count, dtype=torch.long, device=device)
        self._text[:, : self._longest] = torch.tensor(texts, device=device)
        self._logits, self._state = self._read(read, device)
        self._compiled, self._graph = compiled, None
        if graphs and torch.device(device).type == "cuda" and min(count, self._capacity) >= FEW_TOKENS:
            self._capture()
        self._noise = Noise(seed, [0] * len(read) if streams is None else streams)
        self._draws = Draws.start(len(read), self._logits.shape[-1] if sampling.remembers else 0, device)
        if sampling.remembers:
            for row, prompt in zip(self._draws.seen, prompts, strict=True):
                row[torch.tensor(sorted(set(prompt)), device=device)] = True

    @property
    def written(self) -> Tensor:
        """All tokens so far, [B, made], on the device."""
        return self._text[:, self._longest : self._longest + self.made]

    @torch.inference_mode()
    def next(self) -> Tensor:
        """Write the next token of every row: [B], on the device."""
        if self.made == self.count:
            raise ValueError(f"{self.count} tokens were asked for and are written")
        if self.made:
            self._take_in()
        if not self.sampling.greedy and self.made % BLOCK == 0:
            self._noise.fill(self._draws)
        tokens = self.sampling.choose(self._logits, self._draws)
        self._text[:, self._longest + self.made] = tokens
        self.made += 1
        return tokens

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        chosen = torch.tensor(rows, device=self._text.device)
        self._due = [self._due[row] for row in rows]
        self._text, self._logits = self._text[chosen], self._logits[chosen]
        self._state = pick(self._state, chosen)
        if self._graph is not None:
            self._capture()
        self._noise.keep(rows)
        self._draws = Draws(self._draws.noise[chosen], self._draws.place, self._draws.seen[chosen])
        self._recount()

    def _read(self, prompts: list[tuple[int, ...]], device: torch.device | str) -> tuple[Tensor, Any]:
        """The logits after each prompt and a state that holds them; each different prompt is read once."""
        different = list(dict.fromkeys(prompts))
        lengths = [len(prompt) for prompt in different]
        ends = torch.tensor(lengths, device=device)
        tokens = [list(prompt) + [0] * (max(lengths) - len(prompt)) for prompt in different]
        state = self.model.start(len(different), self._capacity)
        same = len(set(lengths)) == 1  # plain rows have the faster path
        logits, state = self.model.step(torch.tensor(tokens, device=device), state, None if same else ends, last=True)
        latest = logits[:, 0]
        if len(different) == len(prompts):
            return latest, state
        number = {prompt: i for i, prompt in enumerate(different)}
        rows = torch.tensor([number[prompt] for prompt in prompts], device=device)
        return latest[rows], pick(state, rows)

    def _take_in(self) -> None:
        """The newest token of each row goes into the state."""
        newest = self._longest + self.made - 1
        if self.made > min(self._due):
            self._slide(newest)
        tokens = self._text[:, newest : newest + 1]
        if self._graph is None:
            logits, self._state = self.model.step(tokens, self._state)
            self._logits = logits[:, -1]
        else:
            self._graph.token.copy_(tokens)
            self._logits = self._graph()
            self._state = self._state._replace(used=self._state.used + 1)

    def _capture(self) -> None:
        """From here on a step is a graph over a state at fixed addresses, which takes over what there is."""
        from regard.generate.graph import GraphedStep

        state = self.model.start(self._text.shape[0], self._capacity, fixed=True)
        self._graph = GraphedStep(self.model, state, compiled=self._compiled)
        put(state, torch.arange(self._text.shape[0], device=self._text.device), self._state)
        self._state = state._replace(used=self._state.used)

    def _slide(self, newest: int) -> None:
        """Rows that have filled the context keep their latest half, of which the newest token is still to come."""
        full = [row for row, due in enumerate(self._due) if self.made > due]
        rows = torch.tensor(full, device=self._text.device)
        kept = max(1, self.context // 2) - 1
        part = self.model.start(len(full), self._capacity)
        if kept:
            _, part = self.model.step(self._text[rows, newest - kept : newest], part, last=True)
        put(self._state, rows, part)
        for row in full:
            self._due[row] = self.made - 1 + self.context - kept
        self._recount()

    def _recount(self) -> None:
        """Tell the state how many tokens its fullest row holds, now that rows were emptied or left."""
        fed = max(0, self.made - 1)
        self._state = self._state._replace(used=max(self.context - due + fed for due in self._due))


def decode(
    model: Steppable, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, **settings: Any
) -> Iterator[list[int]]:
    """Yield ``count`` times the next token of every prompt, as they come; ``settings`` are those of `Decoding`."""
    decoding = Decoding(model, prompts, count, sampling, **settings)
    for _ in range(count):
        yield decoding.next().tolist()
