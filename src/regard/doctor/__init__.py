"""The doctor: faults of a training run, with place, evidence, cause and fix, during training and afterwards."""

from regard.doctor.check import Check, all_checks
from regard.doctor.finding import Finding
from regard.doctor.finished import examine
from regard.doctor.observer import Doctor

__all__ = ["Check", "Doctor", "Finding", "all_checks", "examine"]
