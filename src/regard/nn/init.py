"""Initialization of a model's parameters: every part initializes its own."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention import Bias, Mechanism
from regard.nn.embedding import NGrams
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm, RMSNorm

Initializer = Callable[[Tensor], object]  # fills a tensor in place


def normal(std: float) -> Initializer:
    """Normally distributed with mean 0."""
    return lambda weight: nn.init.normal_(weight, std=std)


def initialize(model: nn.Module, matrix: Initializer, table: Initializer) -> None:
    """Initialize every parameter: matrices of linear layers by ``matrix``, embeddings and bias tables by ``table``.

    Biases become 0 and gains 1. Parts that need other values (n-gram tables, mechanisms) reset themselves at the end.
    """
    done: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, Linear) and module.weight not in done:
            module.init(matrix)
        elif isinstance(module, nn.Embedding):
            table(module.weight)
        elif isinstance(module, Bias):
            module.init(table)
        elif isinstance(module, nn.Conv1d):
            module.reset_parameters()
        done |= set(module.parameters(recurse=False))
    for module in model.modules():
        if isinstance(module, LayerNorm | RMSNorm | NGrams | Mechanism):
            module.reset()


@torch.no_grad()
def damp_logits(norm: nn.Module, width: int, std: float) -> None:
    """Scale the gain of the norm before the head down, so that a new model predicts every token about equally.

    Normalized features that are mostly the embedding of the input, as with residual branches that start at zero, give
    that token a logit of std * width with a tied head: 15 for GPT-2. The gain (std * width)^(-2/3) reduces it to its
    cube root, and the deviation of the others from std * width^(1/2) to less than 0.12. (The gain 1 / (std * width)
    makes the first hundred updates slower.)
    """
    if isinstance(norm, LayerNorm | RMSNorm):
        norm.gain.mul_(min(1.0, (std * width) ** (-2 / 3)))
