"""The attention of a model of arrays, such as images: its tokens are the parts of an array."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.observe import dense_weights, observe
from regard.look.pictures.graph import graph_picture
from regard.look.views.trace import Trace
from regard.models.base import ArrayEncoder, Model
from regard.models.device import parameter_device


def array_trace(model: Model, inputs: tuple[Tensor, ...], names: Sequence[str] = ()) -> Trace:
    """Run the model once on an array, the arguments of a batch of one row; ``names``: of its parts."""
    if not isinstance(model, ArrayEncoder):
        raise UserError(f"look shows models of text and encoders of arrays, and no {type(model).__name__}")
    device = parameter_device(model)
    attentions, _ = observe(model, lambda: model.features(*(x.to(device) for x in inputs)), values=True)
    return Trace(list(names) or model.places(*inputs), None, None, attentions, None, list)


def attention_received(trace: Trace, before: int) -> Tensor:
    """How much attention each part gets: [R, N], the mean over the maps of all layers and heads, and their queries.

    A model may make R rows of one array, such as one for each series.
    """
    maps = [dense_weights(one.load()).mean((1, 2)) for one in trace.attentions if one.unobservable is None]
    if not maps:
        raise UserError("this model has no attention with a map to look at; `regard report` shows its losses")
    return torch.stack(maps).mean(0)[:, before:].cpu()


def first_row(trace: Trace) -> Trace:
    """The same with the attention of the first row alone."""
    first = [one._replace(**{name: x[:1] for name, x in one.tensors.items()}) for one in trace.attentions]
    return replace(trace, attentions=first)


def linked_picture(model: Model, inputs: tuple[Tensor, ...], trace: Trace, title: str) -> str | None:
    """An SVG file with the attention along the links between the parts of an array; None: they have no links."""
    links = model.links(*inputs) if isinstance(model, ArrayEncoder) else None
    if links is None:
        return None
    shown = [one for one in trace.attentions if one.unobservable is None]
    return graph_picture(title, trace.tokens, links.cpu().numpy(), shown)
