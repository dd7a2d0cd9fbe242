"""The attention of a model of arrays, such as images: its tokens are the parts of an array."""

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.observe import dense_weights, observe
from regard.look.views.trace import Trace
from regard.models.base import ArrayEncoder, Model
from regard.models.device import parameter_device


def array_trace(model: Model, inputs: tuple[Tensor, ...]) -> tuple[Trace, Tensor]:
    """Run the model once on an array, the arguments of a batch of one row; and how much attention each part gets.

    A model may make several rows of an array, such as one for each series: the trace is of the first. The attention
    [R, N] of each row's N parts is the mean over the maps of all layers and heads, and over their queries.
    """
    if not isinstance(model, ArrayEncoder):
        raise UserError(f"a {type(model).__name__} reads no arrays")
    device = parameter_device(model)
    attentions, _ = observe(model, lambda: model.features(*(x.to(device) for x in inputs)), values=True)
    maps = [dense_weights(one.load()).mean((1, 2)) for one in attentions if one.unobservable is None]
    if not maps:
        raise UserError("this model has no attention with a map to look at; `regard report` shows its losses")
    weights = torch.stack(maps).mean(0)[:, model.before :].cpu()
    first = [one._replace(**{name: x[:1] for name, x in one.tensors.items()}) for one in attentions]
    return Trace(model.places(*inputs), None, None, first, None, list), weights
