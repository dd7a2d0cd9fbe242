"""Beam search as a tree: every beam that was kept, its parent, and whether it was discarded, continued or finished."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from regard.errors import UserError
from regard.generate.beam import BeamSearch, BeamSearcher
from regard.generate.cached import CachedLanguageModel, CachedSeq2Seq
from regard.generate.constraints import OutputConstraints
from regard.generate.decoder import CachedModel, Decoder, DecodingStep
from regard.generate.sampling import NEVER
from regard.look.capture.trace import evaluation_mode
from regard.look.views.reading import JsonObject
from regard.models.base import LanguageModel, Seq2SeqModel

Spell = Callable[[int], str]
BEAMS = 16
LENGTH = 64


class BeamTree:
    """The nodes of one prompt's search, in order of creation: an observer of the `Decoder`."""

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
        node = {"id": len(self.nodes), "parent": parent, "token": token, "text": self.spell(token)}
        self.nodes.append({**node, "logprob": total - before, "score": total, "alive": True, "finished": final})
        return node["id"]

    def mark_alive(self, nodes: list[int | None]) -> None:
        """Mark these nodes and their ancestors as alive, all others as discarded."""
        alive: set[int | None] = set()
        for node in nodes:
            while node is not None and node not in alive:
                alive.add(node)
                node = self.nodes[node]["parent"]
        for node in self.nodes:
            node["alive"] = node["id"] in alive


def continuation_tree(model: LanguageModel, tokens: list[int], beams: int, length: int, spell: Spell) -> BeamTree:
    """The search for the likeliest continuations of ``length`` tokens."""
    check_size(beams, length)
    prompt = tokens[-max(1, model.config.context - length) :]
    with evaluation_mode(model):
        cached = CachedLanguageModel(model, [prompt], length, graphs=False)
        return _search(cached, OutputConstraints(length), beams, spell)


def translation_tree(
    model: Seq2SeqModel, source: Tensor, constraints: OutputConstraints, beams: int, spell: Spell
) -> BeamTree:
    """The beam search of `regard translate` for one source [1, S]."""
    check_size(beams, constraints.max_length)
    with evaluation_mode(model):
        lengths = source.new_tensor([source.shape[1]])
        cached = CachedSeq2Seq(model, source, lengths, [constraints.begin], constraints.max_length)
        return _search(cached, constraints, beams, spell)


def _search(model: CachedModel, constraints: OutputConstraints, beams: int, spell: Spell) -> BeamTree:
    searcher = BeamSearcher(BeamSearch(beams), constraints)
    tree = BeamTree(searcher, spell)
    for _ in Decoder(model, searcher, constraints.max_length, [tree]):
        pass
    tree.mark_alive([node["id"] for node in tree.nodes if node["finished"]])
    return tree


def check_size(beams: int, length: int) -> None:
    """Refuse a tree that is too large to read."""
    if not 1 <= beams <= BEAMS:
        raise UserError(f"a tree is drawn for 1 to {BEAMS} beams, not {beams}")
    if not 1 <= length <= LENGTH:
        raise UserError(f"a tree is drawn for 1 to {LENGTH} tokens, not {length}")
