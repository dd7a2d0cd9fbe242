"""The `shakespeare` model with a mixture of experts instead of each feed-forward network."""

from dataclasses import replace

from regard.models import GPTConfig
from regard.nn.experts.moe import MoEConfig
from regard.recipes import shakespeare
from regard.train import Experiment


def recipe() -> Experiment:
    """The `shakespeare` model with eight experts in each layer, of which each character is routed to two.

    regard train shakespeare-moe

    The experts are half as wide as its feed-forward network, so that a character costs about the same and finds
    four times as many weights. Losses keep the experts in even use; metrics.jsonl has the share of each.
    """
    base = shakespeare.recipe()
    experts = MoEConfig(ratio=2.0, activation="relu2")
    model = GPTConfig(context=256, layers=4, heads=4, width=128, cap=15.0, ngrams=3, buckets=2**14, feedforward=experts)
    return replace(base, model=model)
