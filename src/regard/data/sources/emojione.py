"""EmojiOne 2: flat emoji with round flags, as 1,832 pictures of 64 x 64 pixels.

From the npm package `emojione` 2.2.7, the last one under a free license; transparent parts become white.
"""

from regard.data.imagetext.emoji import pack_pictures
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="emojione",
    title="1,832 emoji in the style of EmojiOne 2, 64 x 64 pixels",
    license="Creative Commons Attribution 4.0",
    terms="LICENSE.md of the package puts its pictures under CC BY 4.0; its code is MIT",
    file="emojione.safetensors",
    sha256="0485eb64b1d8425dcd0a0852fa79e5a854b4cf07d0385532ad26dd69af5e18c9",
    size=22_536_080,
    origin=NpmPackage(
        package="emojione",
        version="2.2.7",
        sha256="5fe002738e6e276f49ac37783799d2feab99a6131fdedccfa56569d745449ae5",
        members=("assets/png/*.png",),
        assemble=pack_pictures,
    ),
    labels="emoji",
)
