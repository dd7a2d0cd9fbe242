"""The report of a run: one page in words and figures about what was trained and how it went."""

from regard.report.facts import gather
from regard.report.measurements import ModelMeasurements
from regard.report.page import report_at_end, reserved, write
