"""Dutch speech: what two fish say in the game Fish Fillets, with the text; from two Debian packages."""

import re
from collections.abc import Mapping

from regard.data.origins.debian import DebianPackage
from regard.data.origins.several import SeveralPackages
from regard.data.origins.source import Source
from regard.data.signals.recordings import Recording, pack

_DIALOG = re.compile(r'dialogId\("([^"]+)", "[^"]*", "(?:[^"\\]|\\.)*"\)\s*dialogStr\("((?:[^"\\]|\\.)*)"\)')
_EMPTY = 4000  # bytes of a file without a sample
_ROOT = "usr/share/games/fillets-ng/"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    """A recording for each sentence with a text; the same text is a group."""
    found = []
    for path in sorted(members):
        if path.endswith("/dialogs_nl.lua"):
            level = path.split("/")[-2]
            for name, text in _DIALOG.findall(members[path].decode("utf-8")):
                sound = members.get(f"{_ROOT}sound/{level}/nl/{name}.ogg")
                text = " ".join(text.replace("\\", "").split())
                if sound and len(sound) > _EMPTY and text:
                    found.append(Recording(f"{level}/{name}.ogg", text, text.lower(), sound))
    return pack(found)


def _package(package: str, sha256: str, member: str) -> DebianPackage:
    return DebianPackage(
        package=package, version="1.0.1-1.1", sha256=sha256, members=(_ROOT + member,), assemble=_assemble
    )


SOURCE = Source(
    name="dutch-fish",
    title="1,526 Dutch sentences with their texts, two voices, 1.5 hours",
    license="GNU General Public License 2",
    terms="copyright in the packages: version 2 of the GPL, the authors of Fish Fillets NG",
    file="dutch_fish.safetensors",
    sha256="2c9ae697f21248e32793990722d38cf3a7a8347a64ab952538063de6d746760d",
    size=37_169_628,
    origin=SeveralPackages(
        (
            _package(
                "fillets-ng-data",
                "25de89afd8b1adf7bcace8290248a6a22c89cd42300317e69000e162c032cf84",
                "script/*/dialogs_nl.lua",
            ),
            _package(
                "fillets-ng-data-nl",
                "afb4443fda9ab507dee578b75be857d121718a1cd6017a474f30e0eb13dc9d10",
                "sound/*/nl/*.ogg",
            ),
        ),
        _assemble,
    ),
    labels="speech",
)
