"""Attacks on the command line, the run folder and the server, counted: `python -m bench.torture --help`."""
