"""The attention of a model of arrays, such as images: its tokens are the parts of an array.

Latents that read an array, and the words of a caption, are shown as a second text that attends to the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture.observe import dense_weights, observe
from regard.look.pictures.graph import graph_picture
from regard.look.views.trace import Trace
from regard.models import Captioner, Perceiver
from regard.models.base import ArrayEncoder, Model
from regard.models.device import parameter_device
from regard.tasks.captions import written


def array_trace(model: Model, inputs: tuple[Tensor, ...], names: Sequence[str] = ()) -> Trace:
    """Run the model once on an array, the arguments of a batch of one row; ``names``: of its parts."""
    if not isinstance(model, ArrayEncoder):
        raise UserError(f"look shows models of text and encoders of arrays, and no {type(model).__name__}")
    device = parameter_device(model)
    attentions, _ = observe(model, lambda: model.features(*(x.to(device) for x in inputs)), values=True)
    places = model.places(*inputs)
    if isinstance(model, Perceiver):
        return Trace(model.encoder.places(*inputs), places, None, attentions, None, list)
    return Trace(list(names) or places, None, None, attentions, None, list)


def caption_trace(model: Captioner, images: Tensor, text: Callable[[list[int]], str]) -> Trace:
    """Let the model write a caption of an image [1, M, Y, X]; ``text``: of tokens."""
    images = images.to(parameter_device(model))
    tokens = written(model, images)[0]
    inputs = torch.tensor([[model.config.image_mark, *tokens]], device=images.device)
    counts = torch.ones_like(inputs[:, 0])
    attentions, _ = observe(model, lambda: model.features(inputs, images[:, None], counts), values=True)
    if model.encoder.summarizes:  # what latents attend to are neither of the two texts
        attentions = [one for one in attentions if not one.name.startswith("encoder")]
    words = [text([token]) for token in tokens]
    places = model.encoder.places(images)
    return Trace(places, ["<image>", *words], [*words, "<end>"], attentions, None, list)


def attention_received(trace: Trace, before: int) -> Tensor:
    """How much attention each part gets: [R, N], the mean over the maps of all layers and heads, and their queries.

    A model may make R rows of one array, such as one for each series. Of two texts, cross-attention alone counts.
    """
    shown = [one for one in trace.attentions if one.unobservable is None]
    shown = [one for one in shown if trace.target_tokens is None or not one.plan.same_tokens]
    maps = [dense_weights(one.load()).mean((1, 2)) for one in shown]
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
