"""Porttinari-base: 8,420 sentences of Portuguese news with universal part-of-speech tags, in the CoNLL-U format.

From the wheel `dante-corpora` 2.0.5, the file `dante/data/porttinari/annotated.conllu`, unchanged.
"""

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source

SOURCE = Source(
    name="porttinari",
    title="Portuguese news with universal part-of-speech tags",
    license="MIT",
    terms="LICENSE in the package (project POeTiSA): MIT",
    file="porttinari.conllu",
    sha256="a0b82a9a56fe2b987823f1eb59cdfe4af1a31b3ebbfb40a8a8961757ef337962",
    size=9_989_825,
    origin=Wheel(
        package="dante-corpora",
        version="2.0.5",
        sha256="e050761fd00d09a99beabf81658419b284267341c96afd6dd1225468a9d73bb0",
        members=("dante/data/porttinari/annotated.conllu",),
        assemble=lambda members: next(iter(members.values())),
    ),
    labels="tags",
)
