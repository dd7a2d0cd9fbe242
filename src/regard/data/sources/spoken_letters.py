"""Spoken letters and syllables in 20 languages, one voice each, from the Debian package `klettres-data`."""

from collections.abc import Mapping

from regard.data.origins.debian import DebianPackage
from regard.data.origins.source import Source
from regard.data.signals.recordings import Recording, pack


def _assemble(members: Mapping[str, bytes]) -> bytes:
    """A recording for each file; the same letter or syllable in several languages is a group."""
    found = []
    for path in sorted(members):
        language, kind, name = path.removeprefix("usr/share/klettres/").split("/")
        found.append(Recording(f"{language}/{kind}/{name}", language, name.removesuffix(".ogg").lower(), members[path]))
    return pack(found)


SOURCE = Source(
    name="spoken-letters",
    title="1,836 letters and syllables, spoken in 20 languages",
    license="GNU General Public License 2 or later",
    terms="copyright in the package: GPL-2+ of KLettres, Anne-Marie Mahfouf and others",
    file="spoken_letters.safetensors",
    sha256="2d915048a050460fc72374ca3f5fbc3dfb0dd6d22dcb8f5e9387a824e570ced3",
    size=44_355_321,
    origin=DebianPackage(
        package="klettres-data",
        version="4:22.12.3-1",
        sha256="1186d257a19e84230856baea0b0b1ded8be9195080fcdb2588970b5cd937f5a8",
        members=("usr/share/klettres/*/*.ogg",),
        assemble=_assemble,
    ),
    labels="sounds",
)
