"""A recipe: its name is the file's, here `tiny-recipe`.

regard recipes --with tiny_recipe.py
regard train tiny-recipe --with tiny_recipe.py
"""

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.train import Experiment, TrainConfig


def recipe() -> Experiment:
    """Two layers of width 32, trained for twenty steps.

    regard train tiny-recipe --with tiny_recipe.py
    """
    return Experiment(
        model=GPTConfig(context=32, layers=2, heads=2, width=32),
        data=TextConfig(batch=4),
        train=TrainConfig(steps=20),
    )
