"""The cost of approximations: a trained model's attention is replaced by others, and error, loss and speed measured."""

from regard.approximate.budgets import Candidate, available, trials
from regard.approximate.measure import Bench, Measurement, Sweep, measure
