"""The report of a run: one page that says in words and pictures what was trained and how it went."""

from regard.report.watch import Watch
from regard.report.write import reported, study, write

__all__ = ["Watch", "reported", "study", "write"]
