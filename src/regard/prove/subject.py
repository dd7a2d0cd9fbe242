"""What is judged: any model, brought to one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties, Padded, Range

Forward = Callable[[Tensor], Tensor]  # tokens [B, N] to logits [B, N, V]
LONG = 160  # tokens: beyond the blocks in which fast paths cut a text
SEED = 7


@dataclass(frozen=True)
class Sources:
    """What a model that translates reads beside its own text: row i of a batch belongs to source ``rows[i]``."""

    tokens: Tensor  # [R, S]
    lengths: Tensor  # [R]

    def pick(self, rows: Tensor, wider: int = 0) -> tuple[Tensor, Tensor]:
        """The sources of some rows, padded no further than they need, or by ``wider`` places more."""
        lengths = self.lengths[rows]
        width = int(lengths.max())
        picked = self.tokens[rows][:, :width]
        filler = picked.flip(1)[:, :1].expand(-1, wider)
        return torch.cat((picked, filler), dim=1), lengths


@dataclass(frozen=True)
class Subject:
    """A model and what came with it. ``model`` is one of this library; ``forward`` is what anybody's computes."""

    forward: Forward
    vocabulary: int
    length: int  # of the texts it is judged on
    model: Any = None
    behind: Callable[[Tensor, Tensor], Tensor] | None = None  # for rows with padding behind them
    stepper: Any = None  # something with ``start`` and ``step``
    ways: Mapping[str, Forward] = field(default_factory=dict)  # further ways to the same logits
    causal: bool = True
    positions: bool | None = None
    tokenizer: Any = None
    task: Any = None
    data: Any = None

    @cached_property
    def module(self) -> nn.Module | None:
        """The module whose parts can be looked at."""
        whole = self.model if self.model is not None else self.forward
        behind = (whole, getattr(whole, "__self__", None), getattr(whole, "module", None))  # a method of one, say
        return next((one for one in behind if isinstance(one, nn.Module)), None)

    @cached_property
    def device(self) -> torch.device:
        weight = next(self.module.parameters(), None) if self.module is not None else None
        return torch.device("cpu") if weight is None else weight.device

    @cached_property
    def takes_source(self) -> bool:
        return self.model is not None and "source" in inspect.signature(self.model.forward).parameters

    @cached_property
    def takes_slots(self) -> bool:
        return self.model is not None and "slots" in inspect.signature(self.model.forward).parameters

    @cached_property
    def sources(self) -> Sources:
        """Twelve sources of different lengths."""
        config = self.model.config
        vocabulary = getattr(config, "source_vocabulary", None) or self.vocabulary
        generator = torch.Generator().manual_seed(SEED + 1)
        longest = max(2, min(9, getattr(config, "context", 9)))
        tokens = torch.randint(vocabulary, (12, longest), generator=generator)
        lengths = torch.randint(2, longest + 1, (12,), generator=generator)
        return Sources(tokens.to(self.device), lengths.to(self.device))

    @cached_property
    def long(self) -> int:
        """The longest text that may be asked for."""
        if self.model is None or self.takes_source:
            return self.length
        return max(self.length, min(LONG, getattr(self.model.config, "context", self.length)))

    def tokens(self, rows: int, length: int | None = None, seed: int = SEED) -> Tensor:
        """Random text [rows, length]."""
        generator = torch.Generator().manual_seed(seed)
        length = self.length if length is None else length
        return torch.randint(self.vocabulary, (rows, length), generator=generator).to(self.device)

    def others(self, tokens: Tensor, seed: int = SEED) -> Tensor:
        """For every token a different one."""
        generator = torch.Generator().manual_seed(seed)
        add = torch.randint(1, max(2, self.vocabulary), tokens.shape, generator=generator).to(tokens.device)
        return (tokens + add) % self.vocabulary

    def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] of plain rows."""
        if self.takes_source:
            return self.model(tokens, *self.sources.pick(self._rows(tokens, rows)))
        if self.takes_slots and self.model.training:  # rows that begin here, also for a model that carries a state on
            return self.model(tokens, Range(tokens.shape[1]))
        return self.forward(tokens)

    @property
    def pads(self) -> bool:
        """Whether it can be told which tokens are padding, or need not be, because nothing sees what comes later."""
        return self.behind is not None or self.takes_slots or self.takes_source or self.causal

    def padded(self, tokens: Tensor, lengths: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of rows of which the first ``lengths`` tokens are real."""
        if self.behind is not None:
            return self.behind(tokens, lengths)
        if self.takes_source:
            return self.model(tokens, *self.sources.pick(self._rows(tokens, rows), wider=3))
        if self.takes_slots:
            return self.model(tokens, Padded(lengths, tokens.shape[1]))
        return self(tokens, rows)

    def start(self, batch: int, capacity: int, **settings: Any) -> Any:
        if self.takes_source:
            source, lengths = self.sources.pick(torch.arange(batch, device=self.device))
            settings |= {"source": source, "source_lengths": lengths}
        return self.stepper.start(batch, capacity, **settings)

    def _rows(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        return torch.arange(len(tokens), device=tokens.device) if rows is None else rows

    def choosing(self) -> list[str]:
        """The modules that declare to be discontinuous, by name."""
        parts = () if self.model is None else self.model.named_modules()
        return [name for name, part in parts if isinstance(part, ModuleProperties) and part.discontinuous]

    def named(self, mark: str) -> list[str]:
        """The parts that declare ``mark`` to be False, by name."""
        if self.module is None:
            return []
        found = ((name, part) for name, part in self.module.named_modules() if getattr(part, mark, True) is False)
        return [f"{name} ({type(part).__name__})" for name, part in found]


@contextmanager
def mode(module: nn.Module | None, training: bool) -> Iterator[None]:
    """In training or in evaluation mode for a while."""
    if module is None:
        yield
        return
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


@contextmanager
def undisturbed(module: nn.Module | None) -> Iterator[None]:
    """Whatever is asked inside: modes, buffers, gradients, backends and random numbers are as before afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        if module is None:
            yield
            return
        modes = {part: part.training for part in module.modules()}
        buffers = {
            part: {name: None if kept is None else kept.clone() for name, kept in part._buffers.items()}
            for part in module.modules()
        }
        gradients = {weight: weight.grad for weight in module.parameters()}
        module.eval()
        try:
            yield
        finally:
            for part, was in modes.items():
                part.training = was
                _put_back(part, buffers[part])
            for weight, gradient in gradients.items():
                weight.grad = gradient


def _put_back(part: nn.Module, buffers: dict[str, Tensor | None]) -> None:
    for name, kept in buffers.items():
        now = part._buffers.get(name)
        if now is not None and kept is not None and now.shape == kept.shape:
            now.copy_(kept)
        else:
            part._buffers[name] = kept
