"""Faults and healthy runs whose author had read none of the checks: what the doctor is measured with.

Unlike those of `run_faults`, the faults are in parts that the config names, so a replay of a step has them too.
"""
