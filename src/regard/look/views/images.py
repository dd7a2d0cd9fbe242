"""The attention of an image model: its tokens are the class token and the patches."""

import torch

from regard.data.images.arrays import Pixels
from regard.data.images.data import to_floats
from regard.errors import UserError
from regard.look.capture.observe import observe
from regard.look.views.trace import Trace
from regard.models.base import ImageEncoder, Model
from regard.models.device import parameter_device


def image_trace(model: Model, image: Pixels) -> Trace:
    """Run the model on an image [M, Y, X] once; a patch is named by its row and column, from 1 on."""
    if not isinstance(model, ImageEncoder):
        raise UserError(f"a {type(model).__name__} reads no images")
    pixels = torch.from_numpy(to_floats(image))[None].to(parameter_device(model))
    attentions, _ = observe(model, lambda: model.features(pixels), values=True)
    rows, columns = (side // model.patch for side in image.shape[1:])
    places = [f"{row},{column} " for row in range(1, rows + 1) for column in range(1, columns + 1)]
    return Trace(["class "] * model.before + places, None, None, attentions, None, list)
