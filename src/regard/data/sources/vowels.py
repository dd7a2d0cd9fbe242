"""Japanese vowels: 640 utterances of "ae" by 9 men, as 7 to 29 frames of 12 cepstral coefficients (Kudo et al. 1999).

The class is the speaker. The usual division is 270 utterances for training and 370 for the test. From the Python wheel
`aeon` 1.6.0.
"""

from collections.abc import Mapping

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source
from regard.data.series.ts import TEST

_FOLDER = "aeon/datasets/data/JapaneseVowels/JapaneseVowels"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    train, test = (members[f"{_FOLDER}_{part}.ts"].replace(b"\r\n", b"\n").strip() for part in ("TRAIN", "TEST"))
    return train + TEST.encode() + test + b"\n"


SOURCE = Source(
    name="vowels",
    title="640 utterances of a Japanese vowel by 9 speakers, as 12 coefficients over time, 370 of them for a test",
    license="not stated",
    terms="the package is BSD-3 and names the UCI archive, which puts the data of Kudo et al. (1999) under CC BY 4.0",
    file="vowels.ts",
    sha256="e6848dad8af755325d21075f14088dc4765843bc69a19e0ab217c7cf6accca38",
    size=1_137_109,
    origin=Wheel(
        package="aeon",
        version="1.6.0",
        sha256="d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409",
        members=(f"{_FOLDER}_TRAIN.ts", f"{_FOLDER}_TEST.ts"),
        assemble=_assemble,
    ),
    labels="labeled series",
)
