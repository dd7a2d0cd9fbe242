"""The `shakespeare` model with a mixture of experts instead of each feed-forward network."""

from dataclasses import replace

from regard.nn.experts.moe import MoEConfig
from regard.recipes import shakespeare
from regard.train import Experiment


def recipe() -> Experiment:
    """The `shakespeare` model with eight experts in each layer, of which each character is routed to two.

    regard train shakespeare-moe

    The experts are half as wide as its feed-forward network, so that a character costs about the same and finds
    four times as many weights. Losses keep the experts in even use; metrics.jsonl has the share of each.
    """
    model = replace(shakespeare.MODEL, feedforward=MoEConfig(ratio=2.0, activation="relu2"))
    return replace(shakespeare.recipe(), model=model)
