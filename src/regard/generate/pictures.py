"""Images from captions: a text-to-image model continues the tokens of a caption with the codes of an image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.cached import CachedLanguageModel
from regard.generate.constraints import OutputConstraints
from regard.generate.decoder import Decoder
from regard.generate.sampler import Sampler
from regard.generate.sampling import Sampling
from regard.models.text_to_image import TextToImage


@torch.inference_mode()
def pictures(model: TextToImage, captions: Sequence[Sequence[int]], sampling: Sampling, seed: int = 1) -> Tensor:
    """An image [M, Y, X] for each caption, [R, M, Y, X] uint8; row r uses the random numbers of stream r."""
    words, length = model.config.words, model.config.length
    constraints = OutputConstraints(length, forbidden=tuple(range(words)))  # codes only
    sampler = Sampler(sampling, range(len(captions)), constraints, seed=seed, seen=captions)
    decoder = Decoder(CachedLanguageModel(model, captions, length), sampler, length)
    codes = torch.stack(list(decoder), dim=1) - words
    return ((model.coder.decode(codes) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu()
