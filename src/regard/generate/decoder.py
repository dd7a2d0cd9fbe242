"""The decoding loop, shared by all models and strategies.

Prefill, then repeat: the strategy picks a token for every row from the logits, observers are notified, prompts that
have finished leave the batch, and the model's state advances by the picked tokens. The model is a `CachedModel` (a
language model with prompts, or a sequence-to-sequence model with sources); the strategy samples or searches with beams.

Continuous batching (Yu et al. 2022, "Orca"): the next waiting prompt takes the row of a finished one at once. Its
tokens before the last are processed apart and copied into the row of the state; the last one is the row's token of the
next step. So the shapes of a step stay the same, and no row idles while a prompt waits.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

S = TypeVar("S")


class CachedModel(ABC):
    """A model with the decoding state of a batch: ``prompts`` prompts or sources, with ``beams`` rows each.

    Row b * beams + j is the j-th sequence of prompt b. Some models have ``waiting`` prompts more, with one row each.
    """

    prompts: int
    waiting: int = 0
    drop_at: float | None  # drop finished prompts from the batch when they are at least this fraction; None: never

    @abstractmethod
    def prefill(self, beams: int) -> Tensor:
        """Process the prompts; return the logits [R, V] of the first token of every row."""

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [R]; return the logits [R, V] of the next ones."""

    def admit(self, rows: Sequence[int], prompts: Sequence[int]) -> Tensor:
        """Begin these waiting prompts in these rows; return their last tokens, for the next step."""
        raise NotImplementedError

    @abstractmethod
    def reorder(self, rows: Tensor) -> None:
        """Let row i continue the old row ``rows[i]``, which belongs to the same prompt."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Drop all but these rows, which are all rows of some prompts."""


@dataclass
class DecodingStep:
    """The tokens that a strategy picked."""

    logits: Tensor  # [R, V], of the tokens that were allowed
    tokens: Tensor  # [R]
    parents: Tensor | None = None  # [R], the row that each token continues; None: its own row
    active: Tensor | None = None  # [prompts], False for prompts that have finished; None: none has


class Strategy(ABC):
    """Picks the next token of every row."""

    beams: int = 1  # rows per prompt

    @abstractmethod
    def start(self, prompts: int, logits: Tensor) -> None:
        """Allocate for this many prompts; ``logits`` [R, V] gives the vocabulary, the type and the device."""

    @abstractmethod
    def pick(self, logits: Tensor, position: int) -> DecodingStep:
        """Pick the token number ``position`` of every row from logits [R, V], which may be changed in place."""

    def admit(self, rows: Sequence[int], prompts: Sequence[int]) -> None:
        """Begin these waiting prompts in these rows, at the next step."""
        raise NotImplementedError

    @abstractmethod
    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Drop all but these prompts of the current batch, and so all but these rows."""


Observer = Callable[[DecodingStep], None]


class Decoder:
    """Decodes up to ``length`` tokens per prompt, one token of every row per call of ``next``.

    Prompts that wait are admitted by ``retain``.
    """

    @torch.inference_mode()
    def __init__(self, model: CachedModel, strategy: Strategy, length: int, observers: Sequence[Observer] = ()):
        self.model, self.strategy, self.length, self.observers = model, strategy, length, observers
        self.position = 0  # tokens decoded per row
        self.done = False
        self.prompts = list(range(model.prompts))  # the prompts that are in the batch, in the order of their rows
        self._waiting = deque(range(model.prompts, model.prompts + model.waiting))
        self._end = length  # the position at which the prompts in the batch have all their tokens
        self._logits = model.prefill(strategy.beams)
        self._tokens: Tensor | None = None  # picked, not yet in the model's state
        self._parents: Tensor | None = None
        strategy.start(model.prompts, self._logits)

    @torch.inference_mode()
    def next(self) -> Tensor:
        """Decode the next token of every row: [R], on the device."""
        if self.done:
            raise ValueError(f"decoding is finished after {self.position} tokens")
        if self._tokens is not None:
            if self._parents is not None:
                self.model.reorder(self._parents)
            self._logits = self.model.step(self._tokens)
        step = self.strategy.pick(self._logits, self.position)
        self._tokens, self._parents = step.tokens, step.parents
        self.position += 1
        self.done = self.position == self._end
        for observer in self.observers:
            observer(step)
        if step.active is not None and not self.done:
            self.retain(step.active.tolist())
        return step.tokens

    def __iter__(self) -> Iterator[Tensor]:
        """The tokens [R] of every step, until every row has finished."""
        while not self.done:
            yield self.next()

    def retain(self, active: Sequence[bool]) -> int:
        """Admit waiting prompts in place of the finished ones; return how many.

        When none waits, drop the finished prompts from the batch, if they are at least ``drop_at`` of it.
        """
        finished = [place for place, unfinished in enumerate(active) if not unfinished]
        admitted = finished[: len(self._waiting)]
        if admitted:
            self._admit(admitted)
        idle = set(finished[len(admitted) :])
        self.done = len(idle) == len(active)
        fraction = self.model.drop_at
        if idle and not self.done and fraction is not None and len(idle) >= fraction * len(active):
            self.keep([place for place in range(len(active)) if place not in idle])
        return len(admitted)

    @torch.inference_mode()
    def _admit(self, rows: Sequence[int]) -> None:
        """Begin the next waiting prompts in these rows."""
        if self._tokens is None or self.strategy.beams > 1:
            raise ValueError("prompts are admitted after the first token, to a batch with one row per prompt")
        prompts = [self._waiting.popleft() for _ in rows]
        for row, prompt in zip(rows, prompts, strict=True):
            self.prompts[row] = prompt
        self.strategy.admit(rows, prompts)
        last = self.model.admit(rows, prompts)
        # A copy: the caller of ``next`` may still read the tokens of the finished rows.
        self._tokens = self._tokens.index_copy(0, torch.tensor(rows, device=last.device), last)
        self._end = self.position + self.length

    @torch.inference_mode()
    def keep(self, places: Sequence[int]) -> None:
        """Continue with the prompts at these places of the batch only."""
        self.prompts = [self.prompts[place] for place in places]
        kept = torch.tensor(places, device=self._logits.device)
        rows = (kept[:, None] * self.strategy.beams + torch.arange(self.strategy.beams, device=kept.device)).flatten()
        self.strategy.keep(kept, rows)
        self.model.keep(rows if self._parents is None else self._parents[rows])
        self._parents = None
        if self._tokens is None:
            self._logits = self._logits[rows]
        else:
            self._tokens = self._tokens[rows]


# In a `State` and in the two parts of a `Seq2SeqState` every tensor, however deep, has the batch as its first axis.
# Everything else in them is the same for all rows.


def select_rows(state: S, rows: Tensor) -> S:
    """A new state that holds copies of these rows, in this order; a row may appear several times."""
    return tree_map_only(Tensor, lambda tensor: tensor.index_select(0, rows), state)


def write_rows(state: S, rows: Tensor, source: S) -> None:
    """Overwrite these rows of ``state`` with the rows of ``source``, in place."""
    for target, values in zip(tree_leaves(state), tree_leaves(source), strict=True):
        if isinstance(target, Tensor):
            target.index_copy_(0, rows, values)


def reorder_rows(state: S, rows: Tensor, in_place: bool = False) -> S:
    """The state whose row i is the old row ``rows[i]``; ``in_place`` keeps every tensor at its address."""
    if not rows.is_cpu and not in_place:
        return select_rows(state, rows)
    places = torch.arange(len(rows), device=rows.device)
    if rows.is_cpu:  # on a GPU the host would have to wait for the number of changed rows
        places = (rows != places).nonzero()[:, 0]
    if len(places):
        write_rows(state, places, select_rows(state, rows[places]))
    return state
