"""Time series: windows of a table of numbers."""
