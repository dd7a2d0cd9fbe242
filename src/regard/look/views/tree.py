"""Beam search as a tree: every beginning that was kept, what it came from, and where it died, went on or ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.generate.beam import Beams, Search, advance, best_offers
from regard.generate.sampling import NEVER
from regard.generate.seq2seq import Rules, latest, normaliser
from regard.generate.states import pick
from regard.look.capture.trace import at_rest

Spell = Callable[[int], str]
BEAMS = 16
LENGTH = 64


class Tree:
    """Nodes in order of creation; the root is what was there before."""

    def __init__(self, spell: Spell):
        self.spell = spell
        self.nodes: list[dict[str, Any]] = []

    def add(self, parent: int | None, token: int, total: float, *, final: bool = False) -> int:
        """A continuation of ``parent`` (None: the first token) with its whole log-probability."""
        before = 0.0 if parent is None else self.nodes[parent]["score"]
        node = {"id": len(self.nodes), "parent": parent, "token": token, "text": self.spell(token)}
        self.nodes.append({**node, "logprob": total - before, "score": total, "alive": True, "finished": final})
        return node["id"]

    def go_on(self, alive: list[int]) -> None:
        """Only these are still alive, and what they came from."""
        living: set[int | None] = set()
        for number in alive:
            at: int | None = number
            while at is not None and at not in living:
                living.add(at)
                at = self.nodes[at]["parent"]
        for node in self.nodes:
            node["alive"] = node["id"] in living


def check(beams: int, length: int) -> None:
    """A tree that a person can read."""
    if not 1 <= beams <= BEAMS:
        raise UserError(f"a tree is drawn for 1 to {BEAMS} beams, not {beams}")
    if not 1 <= length <= LENGTH:
        raise UserError(f"a tree is drawn for 1 to {LENGTH} tokens, not {length}")


def continued(model: Any, tokens: list[int], context: int, beams: int, length: int, spell: Spell) -> Tree:
    """The likeliest continuations of a text, ``length`` tokens long: nothing ends before."""
    check(beams, length)
    read = tokens[-max(1, context - length) :]
    tree = Tree(spell)
    with at_rest(model):
        device = next(model.parameters()).device
        state = model.start(1, len(read) + length)
        logits, state = model.step(torch.tensor([read], device=device), state, last=True)
        scores, nodes = torch.zeros(1, 1, device=device), [None]
        for number in range(length):
            rows = latest(logits)
            totals, parents, chosen = best_offers(rows[None], normaliser(rows)[None], scores, beams)
            offers = zip(totals[0].tolist(), parents[0].tolist(), chosen[0].tolist(), strict=True)
            nodes = [tree.add(nodes[p], token, total, final=number + 1 == length) for total, p, token in offers]
            tree.go_on(nodes)
            if number + 1 < length:
                state, scores = pick(state, parents[0]), totals
                logits, state = model.step(chosen[0][:, None], state)
    return tree


def translated(model: Any, source: Tensor, rules: Rules, beams: int, spell: Spell) -> Tree:
    """The beam search of `regard translate` for one source [1, S], as it decides."""
    check(beams, rules.most)
    tree, search = Tree(spell), Search(beams=beams)
    with at_rest(model):
        lengths = torch.tensor([source.shape[1]], device=source.device)
        state = model.start(1, rules.most, source=source, source_lengths=lengths, beams=beams)
        token, now, nodes = source.new_full((beams, 1), rules.specials.begin), None, [None] * beams
        for written in range(rules.most):
            logits, state = model.step(token, state)
            logits = latest(logits)
            now = Beams.start(1, beams, rules, logits) if now is None else now
            total = normaliser(logits).view(1, beams)
            offers = best_offers(rules.apply(logits, written).view(1, beams, -1), total, now.scores, 2 * beams)
            now, parents = advance(now, offers, written + 1, rules, search)
            last = written + 1 == rules.most
            _finished(tree, nodes, offers, beams, None if last else rules.specials.end)
            if last or not bool(now.open):
                tree.go_on([node["id"] for node in tree.nodes if node["finished"]])
                break
            rows = zip(parents[0].tolist(), now.text[0, :, written].tolist(), now.scores[0].tolist(), strict=True)
            nodes = [tree.add(nodes[p], token, total) if total > NEVER else None for p, token, total in rows]
            tree.go_on([node for node in nodes if node is not None])
            state = state._replace(own=pick(state.own, parents[0]))
            token = now.text[0, :, written][:, None]
    return tree


def _finished(tree: Tree, nodes: Sequence[int | None], offers: tuple[Tensor, ...], beams: int, end: int | None) -> None:
    """The offers among the first ``beams`` that end; at the greatest length (``end`` None) all of them do."""
    for total, parent, token in zip(*(part[0, :beams].tolist() for part in offers), strict=True):
        if total > NEVER and (end is None or token == end):
            tree.add(nodes[parent], token, total, final=True)
