"""ETTh1: load and oil temperature of an electricity transformer in China, every hour for two years (Zhou et al. 2021).

The standard benchmark of long forecasts. Its protocol reads the first 14,400 hours: 12 months of 30 days for training,
4 for validation and 4 for the test. From the Python source package `momentfm` 0.1.4; the MD5 of the file is that of the
authors', 8381763947c85f4be6ac456c508460d6.
"""

from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source, only_file

SOURCE = Source(
    name="etth1",
    title="An electricity transformer every hour for two years: six loads and the oil temperature",
    license="not stated",
    terms="the package is MIT and does not mention the data; which Zhou et al. (2021) published",
    file="ETTh1.csv",
    sha256="f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    size=2_589_657,
    origin=Sdist(
        package="momentfm",
        version="0.1.4",
        sha256="78ce7a4d32c1328924436e82be5bbf0e1be2d8bb667950116464f3344f626a44",
        members=("data/ETTh1.csv",),
        assemble=only_file,
    ),
    labels="series",
)
