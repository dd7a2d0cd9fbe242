"""Models with the decoding state of a batch, for the `Decoder`: language models, and sequence-to-sequence models."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate.cuda_graph import GraphedStep, graph_refusal
from regard.generate.decoder import CachedModel, reorder_rows, select_rows, write_rows
from regard.models.base import LanguageModel, Seq2SeqModel, State
from regard.models.device import parameter_device


class CachedLanguageModel(CachedModel):
    """A language model that continues prompts by up to ``length`` tokens each.

    No token is conditioned on more tokens than the model's context. A longer prompt is truncated to its end; a row that
    fills the context continues from the latest half of it. Each row does so independently, so its text does not depend
    on the other rows. Equal prompts are processed once.

    At most ``batch`` prompts have a row at a time (default: all of them); the others wait. A state has as many rows as
    the batch and room for the longest text of all prompts, so that a row can hold any of them.

    On a GPU a step is a CUDA graph where the model allows it, unless ``graphs`` is False; ``compiled`` compiles it.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        length: int,
        *,
        batch: int | None = None,
        graphs: bool = True,
        compiled: bool = False,
    ):
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise UserError("a prompt is empty; give at least one character")
        self.model, self.context = model, model.config.context
        self.prompts = len(prompts) if batch is None else min(batch, len(prompts))
        self.waiting = len(prompts) - self.prompts
        self._device = parameter_device(model)
        self._inputs = [tuple(prompt[-self.context :]) for prompt in prompts]
        needed = min(self.context, max(map(len, self._inputs)) + length - 1)
        self._graphed = graphs and graph_refusal(model, self._device, min(length, needed)) is None
        self._compiled = compiled and self._graphed
        # Compiled for the whole context, so that every text uses the same code; unused places cost little.
        self._capacity = self.context if self._compiled else needed
        self.drop_at = None if self._compiled else 0.5  # dropping rows copies the state, and compiles the step again
        self._graph: GraphedStep | None = None
        self._latest: tuple[tuple[int, ...], State] | None = None  # what was admitted last, before its last token

    def prefill(self, beams: int) -> Tensor:
        inputs = [prompt for prompt in self._inputs[: self.prompts] for _ in range(beams)]
        # The latest tokens of each row, as a ring buffer: column n, the same for all rows, is at n % capacity.
        self._text = torch.zeros(len(inputs), self._capacity, dtype=torch.long, device=self._device)
        self._end = max(map(len, inputs))  # the column of the next token
        self._full_at = [0] * len(inputs)  # the column at which a row fills its part of the state
        self._write_text(range(len(inputs)), inputs)
        logits, self._state = self._process(inputs)
        if self._graphed:
            self._capture()
        return logits

    def _process(self, inputs: list[tuple[int, ...]]) -> tuple[Tensor, State]:
        """The logits after each text and a state that holds them; each different text is processed once."""
        unique = {prompt: row for row, prompt in enumerate(dict.fromkeys(inputs))}
        lengths = [len(prompt) for prompt in unique]
        longest = max(1, *lengths)  # an empty text is padding only
        tokens = [list(prompt) + [0] * (longest - len(prompt)) for prompt in unique]
        # Without lengths, rows of one length take the faster path.
        ragged = None if set(lengths) == {longest} else torch.tensor(lengths, device=self._device)
        state = self.model.start(len(unique), self._capacity)
        logits, state = self.model.step(torch.tensor(tokens, device=self._device), state, ragged, last=True)
        if len(unique) == len(inputs):
            return logits[:, 0], state
        rows = torch.tensor([unique[prompt] for prompt in inputs], device=self._device)
        return logits[rows, 0], select_rows(state, rows)

    def admit(self, rows: Sequence[int], prompts: Sequence[int]) -> Tensor:
        inputs = [self._inputs[prompt] for prompt in prompts]
        before = [prompt[:-1] for prompt in inputs]
        # The samples of one prompt come one after the other and are admitted apart.
        if self._latest is None or set(before) != {self._latest[0]}:
            _, state = self._process(before)
            self._latest = before[-1], select_rows(state, torch.tensor([len(rows) - 1], device=self._device))
        else:
            state = select_rows(self._latest[1], torch.zeros(len(rows), dtype=torch.long, device=self._device))
        self._write_text(rows, before)
        write_rows(self._state, torch.tensor(rows, device=self._device), state)
        self._count_used()
        return torch.tensor([prompt[-1] for prompt in inputs], device=self._device)

    def _write_text(self, rows: Sequence[int], texts: Sequence[tuple[int, ...]]) -> None:
        """Let texts end at the present column, in these rows: so each step writes one column."""
        for row, text in zip(rows, texts, strict=True):
            columns = torch.arange(self._end - len(text), self._end, device=self._device) % self._capacity
            self._text[row, columns] = torch.tensor(text, dtype=torch.long, device=self._device)
            self._full_at[row] = self._end + self._capacity - len(text)

    def step(self, tokens: Tensor) -> Tensor:
        self._text[:, self._end % self._capacity] = tokens
        if self._end >= min(self._full_at):
            self._slide()
        self._end += 1
        if self._graph is None:
            logits, self._state = self.model.step(tokens[:, None], self._state)
            return logits[:, -1]
        self._graph.token.copy_(tokens[:, None])
        self._state = self._state._replace(used=self._state.used + 1)
        return self._graph()

    def reorder(self, rows: Tensor) -> None:
        self._text = self._text[rows]
        self._state = reorder_rows(self._state, rows, in_place=self._graph is not None)

    def keep(self, rows: Tensor) -> None:
        self._full_at = [self._full_at[row] for row in rows.tolist()]
        self._text, self._state = self._text[rows], select_rows(self._state, rows)
        if self._graph is not None:
            self._capture()
        self._count_used()

    def _capture(self) -> None:
        """Make the step a CUDA graph, on a state at fixed addresses that takes over the present contents."""
        rows = self._text.shape[0]
        state = self.model.start(rows, self._capacity, fixed=True)
        self._graph = GraphedStep(self.model, state, compiled=self._compiled)
        write_rows(state, torch.arange(rows, device=self._device), self._state)
        self._state = state._replace(used=self._state.used)

    def _slide(self) -> None:
        """Restart full rows with the latest half of the context, of which the newest token is still to be processed."""
        full = [row for row, column in enumerate(self._full_at) if self._end >= column]
        rows = torch.tensor(full, device=self._device)
        # With less room than the context, only a row whose text has all its tokens fills it, while others have not.
        kept = max(1, self.context // 2) - 1 if self._capacity == self.context else 0
        state = self.model.start(len(full), self._capacity)
        if kept:
            columns = torch.arange(self._end - kept, self._end, device=self._device) % self._capacity
            _, state = self.model.step(self._text[rows[:, None], columns], state, last=True)
        write_rows(self._state, rows, state)
        for row in full:
            self._full_at[row] = self._end + self._capacity - kept
        self._count_used()

    def _count_used(self) -> None:
        """Set the number of tokens in the state's fullest row, after rows were restarted or dropped."""
        self._state = self._state._replace(used=self._capacity - min(self._full_at) + self._end)


class CachedSeq2Seq(CachedModel):
    """A sequence-to-sequence model that decodes a target for each source [B, S], each beginning with ``prefix``."""

    drop_at = 1 / 8

    def __init__(
        self, model: Seq2SeqModel, source: Tensor, source_lengths: Tensor, prefix: Sequence[int], capacity: int
    ):
        self.model, self.source, self.source_lengths = model, source, source_lengths
        self.prompts, self._prefix, self._capacity = len(source), prefix, capacity

    def prefill(self, beams: int) -> Tensor:
        self._beams = beams
        self.state = self.model.start(
            self.prompts, self._capacity, source=self.source, source_lengths=self.source_lengths, beams=beams
        )
        prefix = torch.tensor(self._prefix, device=self.source.device)
        return self._step(prefix.expand(self.prompts * beams, -1))

    def step(self, tokens: Tensor) -> Tensor:
        return self._step(tokens[:, None])

    def _step(self, tokens: Tensor) -> Tensor:
        logits, self.state = self.model.step(tokens, self.state)
        return logits[:, -1]

    def reorder(self, rows: Tensor) -> None:
        self.state = self.state._replace(own=reorder_rows(self.state.own, rows))

    def keep(self, rows: Tensor) -> None:
        sources = rows[:: self._beams] // self._beams
        shared, own = select_rows(self.state.shared, sources), select_rows(self.state.own, rows)
        self.state = self.state._replace(shared=shared, own=own)
