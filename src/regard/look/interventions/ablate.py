"""Ablation of heads: the output of a head is set to zero, and the loss and the generated text are compared.

This shows the effect of a head, which its map alone does not (Jain & Wallace 2019, "Attention is not explanation";
Michel et al. 2019). A head's output is zeroed at the input of the layer's output projection, also in decoding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from regard.attention import Out
from regard.errors import UserError
from regard.look.capture.trace import Attention, evaluation_mode, observe
from regard.look.views.reading import Reading, compare_losses
from regard.models.base import Model
from regard.nn import SelfAttention
from regard.nn.cross_attention import CrossAttention
from regard.runs.disk import JsonObject


@contextmanager
def ablated(model: Model, attentions: Sequence[Attention], heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """The model without these (attention, head) of the ``attentions`` of a forward pass; restored on exit."""
    names = [one.name for one in attentions]
    chosen: dict[str, dict[int, list[int]]] = {}  # by module and call, since a block may be repeated: the heads
    for attention, head in heads:
        if not 0 <= attention < len(names):
            raise UserError(f"there is no attention {attention}: this model has 0 to {len(names) - 1}")
        if not 0 <= head < (count := attentions[attention].heads):
            raise UserError(f"attention {attention} has the heads 0 to {count - 1}, not {head}")
        name = names[attention]
        chosen.setdefault(name, {}).setdefault(names[:attention].count(name), []).append(head)
    with ExitStack() as hooks:
        for name, by_call in chosen.items():
            count = attentions[names.index(name)].heads
            layer = model.get_submodule(name.rpartition(".")[0])
            if isinstance(layer, SelfAttention | CrossAttention):
                hook = layer.out.register_forward_pre_hook(_zero_inputs(by_call, names.count(name), count))
            else:  # a recurrent decoder uses the attention's output in several places
                hook = model.get_submodule(name).register_forward_hook(_zero_outputs(by_call.get(0, [])))
            hooks.callback(hook.remove)
        yield


def _zero_inputs(by_call: dict[int, list[int]], calls: int, heads: int) -> Callable[..., tuple[Tensor]]:
    done = 0

    def zero(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal done
        zeroed, done = by_call.get(done % calls, []), done + 1
        parts = inputs[0].unflatten(-1, (heads, -1)).clone()
        parts[..., zeroed, :] = 0
        return (parts.flatten(-2),)

    return zero


def _zero_outputs(heads: list[int]) -> Callable[..., Out]:
    def zero(_: nn.Module, __: object, out: Out) -> Out:
        values = out.values.clone()
        values[:, heads] = 0
        return out._replace(values=values)

    return zero


def ablate(
    model: Model, reading: Reading, heads: Sequence[tuple[int, int]], generate: Callable[[], str | None]
) -> JsonObject:
    """The loss of each token and the generated text, before and after."""
    attentions, features = observe(model, lambda: reading.features(model))
    with evaluation_mode(model):
        before, text = reading.losses(model, features), generate()
        with ablated(model, attentions, heads):
            after, other = reading.losses(model, reading.features(model)), generate()
    return {**compare_losses(before, after), "text": {"before": text, "after": other}}
