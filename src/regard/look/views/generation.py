"""Decoding step by step: the distribution of the next token, and beam search as a tree."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.constraints import OutputConstraints
from regard.generate.decoder import CachedModel, Decoder, DecodingStep
from regard.generate.sampling import NEVER, Sampling, in_float32
from regard.look.interventions.residual import Spell
from regard.runs.disk import JsonObject

LISTED = 50  # of the likeliest tokens


def distribution(logits: Tensor, sampling: Sampling, tokens: Sequence[int], spell: Spell) -> JsonObject:
    """The likeliest tokens after ``tokens``: their probabilities before and after the logits processors. [1, V]."""
    logits = in_float32(logits)
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[0, tokens] = True
    processed = sampling.process(logits, seen)
    chosen = processed.softmax(-1)[0]
    if sampling.greedy:
        chosen = torch.zeros_like(chosen).index_fill_(0, processed.argmax(-1), 1.0)
    plain = logits.softmax(-1)[0]
    best = logits[0].topk(min(LISTED, logits.shape[-1])).indices
    numbers = (x[best].tolist() for x in (logits[0], plain, chosen))
    names = ("token", "text", "logit", "probability", "sampling_probability")
    rows = zip(best.tolist(), spell(best.tolist()), *numbers, strict=True)
    likeliest = [{**dict(zip(names, row, strict=True)), "kept": row[4] > 0} for row in rows]
    entropies = {"entropy": plain, "sampling_entropy": chosen}
    return {"candidates": likeliest, **{name: float(torch.special.entr(p).sum()) for name, p in entropies.items()}}


def nbytes(state: object) -> int:
    """The bytes of all tensors in a state, however deep."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(map(nbytes, state)) if isinstance(state, tuple) else 0


class BeamTree:
    """The nodes of one prompt's search, in order of creation: an observer of the `Decoder`.

    A node is a beam that was kept, with its parent, and whether it was discarded, continued or finished.
    """

    def __init__(self, searcher: BeamSearcher, spell: Spell):
        self.searcher, self.spell = searcher, spell
        self.nodes: list[JsonObject] = []
        self._beams: dict[int, int | None] = {}  # the node of each beam

    def __call__(self, step: DecodingStep) -> None:
        """Add the candidates that finished, then the beams that continue, best first."""
        parents, searcher = self._beams, self.searcher
        ended = zip(*(part[0].tolist() for part in (*searcher.candidates, searcher.ended)), strict=True)
        for total, parent, token, finished in ended:
            if finished:
                self._add(parents.get(parent), token, total, final=True)
        if step.active is not None and not bool(step.active[0]):
            return
        old = range(len(step.tokens)) if step.parents is None else step.parents.tolist()
        rows = zip(searcher.state.logprobs[0].tolist(), old, step.tokens.tolist(), strict=True)
        beams = sorted(enumerate(rows), key=lambda beam: -beam[1][0])
        self._beams = {
            row: self._add(parents.get(parent), token, total) for row, (total, parent, token) in beams if total > NEVER
        }
        self.mark_alive(list(self._beams.values()))

    def _add(self, parent: int | None, token: int, total: float, *, final: bool = False) -> int:
        """A continuation of ``parent`` (None: the first token) with its whole log-probability."""
        before = 0.0 if parent is None else self.nodes[parent]["score"]
        node = {"id": len(self.nodes), "parent": parent, "token": token, "text": self.spell([token])[0]}
        self.nodes.append({**node, "logprob": total - before, "score": total, "alive": True, "finished": final})
        return len(self.nodes) - 1

    def mark_alive(self, nodes: list[int | None]) -> None:
        """Mark these nodes and their ancestors as alive, all others as discarded."""
        alive: set[int | None] = set()
        for node in nodes:
            while node is not None and node not in alive:
                alive.add(node)
                node = self.nodes[node]["parent"]
        for node in self.nodes:
            node["alive"] = node["id"] in alive


def beam_tree(model: CachedModel, constraints: OutputConstraints, beams: int, spell: Spell) -> list[JsonObject]:
    """The nodes of a beam search from one prompt or source."""
    searcher = BeamSearcher(BeamSearch(beams), constraints)
    tree = BeamTree(searcher, spell)
    for _ in Decoder(model, searcher, constraints.max_length, [tree]):
        pass
    tree.mark_alive([node["id"] for node in tree.nodes if node["finished"]])
    return tree.nodes
