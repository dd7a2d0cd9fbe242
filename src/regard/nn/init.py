"""Initialization of a model's parameters: every part initializes its own."""

from collections.abc import Callable

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
        done |= set(module.parameters(recurse=False))
    for module in model.modules():
        if isinstance(module, LayerNorm | RMSNorm | NGrams | Mechanism):
            module.reset()
