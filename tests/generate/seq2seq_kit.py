"""A small model with a source, and beam search by its definition: sentence by sentence, one full pass at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import torch
from torch import Tensor, nn

from regard.data.translation.pairs import Specials
from regard.generate import BeamSearch, Hypothesis, OutputConstraints

WORDS = 9  # tokens besides the three marks
MARKS = Specials.after(WORDS)


class State(NamedTuple):
    shared: tuple[Tensor, Tensor]  # annotations [B, S, W], lengths [B]
    own: tuple[Tensor]  # hidden [B * beams, W]
    beams: int


class Small(nn.Module):
    """A recurrent decoder that looks at the source by dot products: every part of the protocol, nothing else."""

    def __init__(self, seed: int = 0, vocabulary: int = WORDS + 3, width: int = 12, wild: float = 2.0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.out = nn.Linear(2 * width, vocabulary)
        self.double().eval()
        for parameter in self.parameters():
            parameter.data *= wild  # far from even, so that a wrong memory changes the choice

    def annotations(self, source: Tensor) -> Tensor:
        return self.encoder(self.embed(source))[0]

    def look(self, hidden: Tensor, notes: Tensor, lengths: Tensor) -> Tensor:
        """hidden [B, K, W] over annotations [B, S, W]: what each finds, [B, K, W]."""
        scores = hidden @ notes.transpose(1, 2)
        empty = torch.arange(notes.shape[1]) >= lengths[:, None]
        return scores.masked_fill(empty[:, None], float("-inf")).softmax(-1) @ notes

    def one(self, tokens: Tensor, hidden: Tensor, notes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, K] after hidden [B, K, W]: features [B, K, 2 W] and the new hidden."""
        found = self.look(hidden, notes, lengths)
        inputs = torch.cat((self.embed(tokens), found), -1)
        hidden = self.cell(inputs.flatten(0, 1), hidden.flatten(0, 1)).view(hidden.shape)
        return torch.cat((hidden, found), -1), hidden

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        notes = self.annotations(source)
        hidden, made = notes.new_zeros(notes.shape[0], 1, notes.shape[2]), []
        for token in inputs.T:
            out, hidden = self.one(token[:, None], hidden, notes, source_lengths)
            made.append(out)
        return torch.cat(made, 1)

    def head(self, x: Tensor) -> Tensor:
        return self.out(x)

    def forward(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        return self.head(self.features(inputs, source, source_lengths))

    def start(self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1) -> State:
        notes = self.annotations(source)
        return State((notes, source_lengths), (notes.new_zeros(batch * beams, notes.shape[2]),), beams)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        notes, lengths = state.shared
        (hidden,), logits = state.own, []
        for token in tokens.T:
            shape = (notes.shape[0], state.beams)
            out, deep = self.one(token.view(shape), hidden.view(*shape, -1), notes, lengths)
            hidden = deep.flatten(0, 1)
            logits.append(self.head(out).flatten(0, 1))
        return torch.stack(logits, 1), state._replace(own=(hidden,))


def padded(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Sources as a batch: each with the end mark, then padding."""
    lengths = [len(source) + 1 for source in sources]
    rows = [[*source, MARKS.end] + [MARKS.pad] * (max(lengths) - n) for source, n in zip(sources, lengths, strict=True)]
    return torch.tensor(rows), torch.tensor(lengths)


sentences = st.lists(st.lists(st.integers(0, WORDS - 1), max_size=6), min_size=1, max_size=7)


def logprobs(model: Any, source: list[int], prefix: list[int]) -> list[float]:
    """What the model gives each next token, by a full pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[MARKS.begin, *prefix]]), *padded([source]))
    return logits[0, -1].log_softmax(-1).tolist()


def own_logprob(model: Any, source: list[int], found: Hypothesis) -> float:
    """The model's log-probability of a text, teacher-forced."""
    tokens = [*found.tokens, *([MARKS.end] if found.ended else [])]
    with torch.no_grad():
        features = model.features(torch.tensor([[MARKS.begin, *tokens[:-1]]]), *padded([source]))
        given = model.head(features)[0].log_softmax(-1)
    return float(given.gather(1, torch.tensor(tokens)[:, None]).sum())


def naive_beam_search(
    model: Any, source: list[int], constraints: OutputConstraints, search: BeamSearch
) -> list[Hypothesis]:
    """The definition, for one source."""
    return search_by_definition(lambda tokens: logprobs(model, source, tokens), constraints, search)


def search_by_definition(
    next_logprobs: Callable[[list[int]], list[float]], constraints: OutputConstraints, search: BeamSearch
) -> list[Hypothesis]:
    """Beam search in lists; ``next_logprobs`` gives the log-probability of every token after the given ones."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for length in range(1, constraints.max_length + 1):
        candidates = []
        for score, text in beams:
            for token, logprob in enumerate(next_logprobs(text)):
                early = token == constraints.end and length <= constraints.min_length
                if token not in constraints.forbidden and not early:
                    candidates.append((score + logprob, [*text, token]))
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * search.beams]

        def ends(text: list[int]) -> bool:
            return text[-1] == constraints.end or (constraints.stop is not None and constraints.stop(text))

        for score, text in candidates[: search.beams]:
            if ends(text) or length == constraints.max_length:
                finished.append(constraints.hypothesis(text, score / search.weight(length), score))
        finished = sorted(finished, key=lambda one: -one.score)[: search.beams]
        beams = [(score, text) for score, text in candidates if not ends(text)][: search.beams]
        if not beams:
            break
        if len(finished) == search.beams and (
            search.early or beams[0][0] / search.weight(length) <= finished[-1].score
        ):
            break
    return finished
