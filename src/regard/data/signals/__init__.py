"""Signals: sounds, time series and other arrays over time, with a class or a text for each."""
