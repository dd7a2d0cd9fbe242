"""The doctor: what is wrong with a training, where, why, and the option that mends it; live and afterwards."""

from regard.doctor.finding import KINDS, Finding
from regard.doctor.finished import examine
from regard.doctor.observer import Doctor

__all__ = ["KINDS", "Doctor", "Finding", "examine"]
