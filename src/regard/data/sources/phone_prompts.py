"""Phone prompts: what a telephone exchange says, in five languages with one voice each (English and Spanish: the same).

From the Debian packages `asterisk-core-sounds-*-wav`: 8,000 samples of 16 bits per second.
"""

from collections.abc import Mapping

from regard.data.origins.debian import DebianPackage
from regard.data.origins.several import SeveralPackages
from regard.data.origins.source import Source
from regard.data.signals.recordings import Recording, pack

_SHA256 = {
    "en": "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    "es": "9283a09a6d56fccdcc2bcfe86c48f0f844289cfbd46a3184d8785a6f7f569903",
    "fr": "8d4e1bc32ed5ba7fbda40841ca1825ed20cc6232724a473c90f8bb0e53e6073e",
    "it": "5a26638089e134b8ac39363fe249c5c93c50cd8bfdc9b2499ae61ec4a35e2fcb",
    "ru": "ccbfaebfa450b7a9ddf644ae0f3d1e9017d5df7c0aebe816e946345589d38201",
}
_NO_SPEECH = (
    "silence/",
    "beep",
    "ascending-2tone",
    "descending-2tone",
    "tt-monkeys",
    "confbridge-join.",
    "confbridge-leave.",
)
_EMPTY = 1000  # bytes, a sixteenth of a second


def _assemble(members: Mapping[str, bytes]) -> bytes:
    """A recording for each file with speech; the same prompt in several languages is a group."""
    found = []
    for path in sorted(members):
        voice, _, prompt = path.removeprefix("usr/share/asterisk/sounds/").partition("/")
        if not prompt.startswith(_NO_SPEECH) and len(members[path]) > _EMPTY:
            found.append(Recording(f"{voice}/{prompt}", voice[:2], prompt.removesuffix(".wav"), members[path]))
    return pack(found)


SOURCE = Source(
    name="phone-prompts",
    title="2,740 phone prompts in five languages, 2.1 hours",
    license="CC BY-SA 3.0; of Italian and Russian CC BY 3.0",
    terms="the copyright files of the packages: recorded by Allison Smith, June Wallack, Carlo Flora and Maxim Topal; "
    "redistribution requires attribution, of English, French and Spanish the same license, too",
    file="phone_prompts.safetensors",
    sha256="235d1a24d90f35c57ecb16974fb3fa3db16eda58404cd61a61074c2d39fdfde7",
    size=120_085_222,
    origin=SeveralPackages(
        tuple(
            DebianPackage(
                package=f"asterisk-core-sounds-{language}-wav",
                version="1.6.1-1",
                sha256=sha256,
                members=("usr/share/asterisk/sounds/*.wav",),
                assemble=_assemble,
            )
            for language, sha256 in _SHA256.items()
        ),
        _assemble,
    ),
    labels="sounds",
)
