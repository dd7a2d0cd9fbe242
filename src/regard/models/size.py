"""What a model costs: parameters, memory and FLOPs, counted from shapes."""

from collections import Counter

import torch
from torch import nn

from regard.attention import Mask
from regard.models.base import ArrayEncoder, Model, ModelConfig, Seq2SeqModel


def flops_per_token(model: Model) -> float:
    """Operations of the forward and backward pass per token: 6 per matrix weight, and attention to the visible keys.

    An embedding table counts only if it is also the head (tied); the weights of a block count each time it runs. For an
    encoder-decoder this is the cost of one source and one target token without attention: sentences are much shorter
    than the context, which only limits them. Of a model of arrays, such as images, it is the cost of a whole array.
    """
    lookups = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    lookups -= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    runs = Counter(parameter for block in model.residual_blocks() for parameter in block.parameters())
    matrices = sum(p.numel() * max(1, runs[p]) for p in model.parameters() if p.ndim == 2 and p not in lookups)
    matrices -= model.inactive_parameters
    if isinstance(model, Seq2SeqModel):
        return 6 * matrices
    keys = {mask: _visible_keys(mask, model.config.context) for mask in model.masks}
    one = 6 * matrices + 12 * model.config.width * sum(keys[mask] for mask in model.layer_masks)
    return one * model.config.context if isinstance(model, ArrayEncoder) else one


def _visible_keys(mask: Mask, length: int) -> float:
    """The mean number of keys within a mask's reach, over the queries of a text."""
    back, ahead = (length if reach is None else reach for reach in mask.reach())
    return sum(min(i, back) + 1 + min(length - 1 - i, ahead) for i in range(length)) / length


def describe(config: ModelConfig) -> dict[str, int]:
    """Parameters, memory and FLOPs of a model: the meta device allocates no weights.

    The figures per token of an encoder-decoder are for one source and one target token together.

    >>> from regard.models import PRESETS
    >>> describe(PRESETS["gpt3-175b"])["parameters"] // 10**9
    174
    """
    with torch.device("meta"):
        model = config.build()
    total = sum(p.numel() for p in model.parameters())
    inside = dict.fromkeys(parameter for block in model.blocks for parameter in block.parameters())
    return {
        "parameters": total,
        "parameters_in_blocks": sum(parameter.numel() for parameter in inside),
        "bytes_float32": 4 * total,
        "bytes_bfloat16": 2 * total,
        "cache_elements_per_token": model.cache_per_token,
        "flops_per_token": round(flops_per_token(model)),
    }
