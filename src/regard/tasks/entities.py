"""Entities in sequences of tags such as B-PER I-PER O, counted as by `conlleval` and seqeval.

A tag has a prefix (B: begin, I: inside, E: end, S: single, O: outside) and a type. An entity begins at a B or S, after
an entity that has ended, or where the type changes; so an I that follows an O begins one.
"""

from collections.abc import Sequence


def has_entities(labels: Sequence[str]) -> bool:
    """Whether labels are tags of entities: O, and others with the prefixes B, I, E and S."""
    others = [label for label in labels if label != "O"]
    prefixed = bool(others) and all(label[:2] in ("B-", "I-", "E-", "S-") for label in others)
    return prefixed and any(label.startswith("B-") for label in others)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities of a sentence: type, first word, last word.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC"]))
    [('LOC', 3, 3), ('PER', 0, 1)]
    """
    found, start = set(), 0
    before, kind = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        ended = before in ("E", "S") or prefix in ("B", "S", "O") or own != kind
        if before != "O" and ended:
            found.add((kind, start, place - 1))
        if prefix != "O" and (before in ("E", "S", "O") or ended):
            start = place
        before, kind = prefix, own
    return found
