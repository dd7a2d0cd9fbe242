"""The attention of a model of arrays, such as images: its tokens are the parts of an array."""

from torch import Tensor

from regard.errors import UserError
from regard.look.capture.observe import observe
from regard.look.views.trace import Trace
from regard.models.base import ArrayEncoder, Model
from regard.models.device import parameter_device


def array_trace(model: Model, inputs: tuple[Tensor, ...]) -> Trace:
    """Run the model once on an array, the arguments of a batch of one row."""
    if not isinstance(model, ArrayEncoder):
        raise UserError(f"look shows models of text and encoders of arrays, and no {type(model).__name__}")
    device = parameter_device(model)
    attentions, _ = observe(model, lambda: model.features(*(x.to(device) for x in inputs)), values=True)
    return Trace(model.places(*inputs), None, None, attentions, None, list)
