"""Names and tags of all emoji in 28 languages, and their categories: what the pictures of emoji show.

From the npm package `emojibase-data` 17.0.0, which takes them from Unicode's CLDR.
"""

from regard.data.imagetext.emoji import pack_captions
from regard.data.origins.npm import NpmPackage
from regard.data.origins.source import Source

SOURCE = Source(
    name="emoji-captions",
    title="names and tags of 1,923 emoji in 28 languages",
    license="MIT",
    terms="the LICENSE of the package, by Miles Johnson",
    file="emoji-captions.json",
    sha256="3feaa75a1c58a1a800966d4c052a96ce3e57fbd26a46f6674e640d20fb366474",
    size=4_424_319,
    origin=NpmPackage(
        package="emojibase-data",
        version="17.0.0",
        sha256="d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
        members=("*/data.json", "*/messages.json", "meta/groups.json"),
        assemble=pack_captions,
    ),
    labels="captions",
)
