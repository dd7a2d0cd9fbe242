"""What an approximation would cost: other attentions in the place of a trained model's exact one."""

from regard.approximate.budgets import Trial, available, trials
from regard.approximate.measure import Bench, Meter, Outcome, Text, measure

__all__ = ["Bench", "Meter", "Outcome", "Text", "Trial", "available", "measure", "trials"]
