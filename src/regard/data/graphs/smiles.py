"""SMILES to graphs: atoms, bonds, branches, rings and implicit hydrogens (Weininger 1988; opensmiles.org).

Stereochemistry, isotopes and atom classes are read and left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from regard.data.graphs.graph import Graph, both_ways
from regard.errors import UserError

ELEMENTS = ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I", "B", "Si", "Se", "H", "Na", "K")
KINDS = len(ELEMENTS) + 1  # the last: any other element
BONDS = {"-": 0, "/": 0, "\\": 0, "=": 1, "#": 2, "$": 2, ":": 3}  # single, double, triple, aromatic
ORDERS = (1, 2, 3, 1)  # what a bond takes of an atom's valence; an aromatic atom takes one more
VALENCES = {"B": (3,), "C": (4,), "N": (3, 5), "O": (2,), "P": (3, 5), "S": (2, 4, 6)}  # others: 1
NUMBERS = 6  # that describe an atom: bonds, hydrogens, valence, charge, aromatic or not, in a ring or not
MOST = 1000  # atoms of a molecule
_TOKEN = re.compile(
    r"\[\d*(?P<inner>[A-Z][a-z]?|[a-z][a-z]?|\*)@*(?:H(?P<h>\d*))?(?P<charge>[+-]\d+|\++|-+)?(?::\d+)?\]"
    r"|(?P<atom>Cl|Br|[BCNOPSFI*]|[bcnops])|(?P<bond>[-=#$:/\\])|(?P<ring>\d|%\d\d)|(?P<other>[().])"
)


@dataclass
class _Molecule:
    """What has been read so far."""

    atoms: list[str] = field(default_factory=list)  # elements
    aromatic: list[bool] = field(default_factory=list)
    hydrogens: list[int | None] = field(default_factory=list)  # None: implicit
    charges: list[int] = field(default_factory=list)
    before: list[int | None] = field(default_factory=list)  # the atom that each was bonded to when it was read
    bonds: list[tuple[int, int, int | None]] = field(default_factory=list)  # None: not written
    in_ring: set[tuple[int, int]] = field(default_factory=set)  # bonds of rings, the smaller atom first

    def add(self, token: re.Match[str], previous: int | None, bond: int | None) -> int:
        """One more atom and its bond."""
        symbol, charge = token["inner"] or token["atom"], token["charge"] or ""
        inner = token["inner"] is not None
        self.atoms.append(symbol.capitalize())
        self.aromatic.append(symbol[0].islower())
        self.hydrogens.append(0 if inner and token["h"] is None else int(token["h"] or 1) if inner else None)
        signs = charge if len(set(charge)) > 1 else f"{charge[:1]}{len(charge)}"
        self.charges.append(int(signs) if charge else 0)
        self.before.append(previous)
        if previous is not None:
            self.bonds.append((previous, len(self.atoms) - 1, bond))
        return len(self.atoms) - 1

    def close(self, one: int, other: int, bond: int | None) -> None:
        """A ring: the new bond, and the path between its ends over the bonds that were read before."""
        self.bonds.append((one, other, bond))
        paths = [self._path(one), self._path(other)]
        if paths[0][-1] == paths[1][-1]:  # else it joins two parts of the molecule
            self.in_ring |= {(min(one, other), max(one, other)), *(set(paths[0]) ^ set(paths[1]))}

    def _path(self, atom: int) -> list[tuple[int, int]]:
        """The bonds from an atom back to the first atom of its part, which ends the list, bonded to itself."""
        found = []
        while (before := self.before[atom]) is not None:
            found.append((before, atom))
            atom = before
        return [*found, (atom, atom)]

    def graph(self) -> Graph:
        """Its graph, with bonds in both directions."""
        edges, taken, degree = [], np.zeros(len(self.atoms)), np.zeros(len(self.atoms))
        for one, other, bond in self.bonds:
            aromatic = (
                self.aromatic[one] and self.aromatic[other] and (min(one, other), max(one, other)) in self.in_ring
            )
            kind = (3 if aromatic else 0) if bond is None else bond
            edges.append((one, other, kind))
            taken[[one, other]] += ORDERS[kind]
            degree[[one, other]] += 1
        hydrogens = [self._hydrogens(atom, int(taken[atom])) for atom in range(len(self.atoms))]
        ringed = {atom for bond in self.in_ring for atom in bond}
        rings = [atom in ringed for atom in range(len(self.atoms))]
        numbers = np.stack([degree, hydrogens, taken, self.charges, self.aromatic, rings], 1, dtype=np.float32)
        kinds = [ELEMENTS.index(atom) if atom in ELEMENTS else KINDS - 1 for atom in self.atoms]
        return Graph(np.array(kinds, np.int64), both_ways(np.array(edges, np.int64).reshape(-1, 3)), numbers)

    def _hydrogens(self, atom: int, taken: int) -> int:
        known = self.hydrogens[atom]
        if known is not None or self.atoms[atom] == "*":
            return known or 0
        valences = VALENCES.get(self.atoms[atom], (1,))
        if self.aromatic[atom]:
            return max(0, valences[0] - taken - 1)
        return next((valence - taken for valence in valences if valence >= taken), 0)


def read_smiles(smiles: str) -> Graph:
    """The graph of a molecule: atoms without hydrogens, which are counted; a UserError names the place of a fault.

    >>> read_smiles("CC(=O)O").edges.tolist()
    [[0, 1, 0], [1, 0, 0], [1, 2, 1], [1, 3, 0], [2, 1, 1], [3, 1, 0]]
    >>> read_smiles("CC(=O)O").numbers[:, 1].tolist()  # hydrogens
    [3.0, 0.0, 0.0, 1.0]
    """

    def refuse(why: str) -> UserError:
        return UserError(f"{smiles[:60]!r} is no SMILES: {why}")

    found, place = _Molecule(), 0
    last: int | None = None
    bond: int | None = None
    branches: list[int | None] = []
    rings: dict[str, tuple[int, int | None]] = {}
    while place < len(smiles):
        token = _TOKEN.match(smiles, place)
        if token is None or len(found.atoms) >= MOST:
            raise refuse(f"{smiles[place]!r} at {place + 1}" if token is None else f"it has over {MOST} atoms")
        place = token.end()
        if token["inner"] or token["atom"]:
            last, bond = found.add(token, last, bond), None
        elif token["bond"]:
            bond = BONDS[token["bond"]]
        elif token["other"] == "." or last is None:
            if last is None:
                raise refuse(f"{token[0]!r} at {place} follows no atom")
            last = bond = None
        elif token["ring"]:
            opened = rings.pop(token["ring"].lstrip("%"), None)
            if opened is None:
                rings[token["ring"].lstrip("%")] = (last, bond)
            elif opened[0] == last:
                raise refuse(f"the ring at {place} has one atom")
            else:
                found.close(opened[0], last, bond if opened[1] is None else opened[1])
            bond = None
        elif token["other"] == "(":
            branches.append(last)
        elif not branches:
            raise refuse(f"')' at {place} closes no branch")
        else:
            last = branches.pop()
    if not found.atoms or branches or rings or bond is not None:
        raise refuse("it has no atom" if not found.atoms else "a branch, a ring or a bond is not closed")
    return found.graph()
