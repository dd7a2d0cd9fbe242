"""The report of a run: one page in words and figures about what was trained and how it went."""

from regard.report.watch import Watch
from regard.report.write import reported, study, write
