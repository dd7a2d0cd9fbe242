"""The forms in which ``attend`` takes a mask, converted to a Mask and a Bias: the operator knows only these.

* a ``Mask``;
* a boolean tensor, True where a query may attend to a key, broadcastable to [B, H, Q, K], as
  ``F.scaled_dot_product_attention`` takes it. A query that may attend to nothing gets zeros;
* a float tensor of such a shape, added to the scaled scores; -inf hides a key. Gradients reach it;
* text: ``"causal & window(64)"`` (see ``expression.py``);
* a function of (q_index, k_index), or FlexAttention's ``mask_mod`` of (b, h, q_index, k_index), that returns a boolean
  tensor and acts on each pair by itself. The indices are the orders of the slots, which count from 0 by default.
"""

from collections.abc import Callable
from inspect import Parameter, signature

import torch
from torch import Tensor

from regard.attention.masks.expression import parse
from regard.attention.masks.mask import Full, Mask
from regard.attention.masks.tables import Edges, Rule
from regard.attention.score import AddedTensor, Bias
from regard.attention.slots import AnySlots, Range, Slots, first_order, make_pairs

MaskLike = Mask | Tensor | str | Callable[..., Tensor]
FORMS = (
    "a Mask such as Causal(), a boolean tensor (True: may attend), a float tensor (added to the scores), text such as "
    "'causal & window(64)', or a function of (q_index, k_index) or (b, h, q_index, k_index)"
)


def from_user(
    mask: MaskLike | None, q: Tensor, k: Tensor, queries: AnySlots, keys: AnySlots
) -> tuple[Mask, Bias | None]:
    """What ``mask`` means for q [B, H, Q, D] and k [B, G, K, D]."""
    if mask is None or isinstance(mask, Mask):
        return (Full() if mask is None else mask), None
    if isinstance(mask, str):
        return parse(mask), None
    if isinstance(mask, Tensor):
        return _from_tensor(mask.to(q.device), (*q.shape[:3], k.shape[2]), queries, keys)
    if isinstance(mask, type) or not callable(mask):
        given = f"the class {mask.__name__}" if isinstance(mask, type) else type(mask).__name__
        raise TypeError(f"a mask is {FORMS}; {given} was given")
    return _from_function(mask, q), None


def _from_tensor(table: Tensor, shape: tuple[int, ...], queries: AnySlots, keys: AnySlots) -> tuple[Mask, Bias | None]:
    if table.dtype != torch.bool and not table.is_floating_point():
        kind = str(table.dtype).removeprefix("torch.")
        raise TypeError(f"a mask tensor is boolean or float, not {kind}; if nonzero means may attend, use mask.bool()")
    if any(isinstance(slots, Slots) or first_order(slots) for slots in (queries, keys)):
        raise ValueError("a mask tensor is indexed by place in q and k; with slots that do not count from 0 use a Mask")
    wide = table[(None,) * (4 - table.ndim)] if table.ndim < 4 else table
    if wide.ndim > 4 or any(n not in (1, most) for n, most in zip(wide.shape, shape, strict=True)):
        raise ValueError(f"a mask of shape {tuple(table.shape)} does not broadcast to [B, H, Q, K] = {list(shape)}")
    wide = wide.expand(-1, -1, *shape[2:])
    if table.dtype == torch.bool:
        return Edges(wide), None
    visible = wide != float("-inf")
    return Edges(visible), AddedTensor(wide.masked_fill(~visible, 0))


def _from_function(function: Callable[..., Tensor], q: Tensor) -> Mask:
    name = Rule(function).name
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    try:
        given = signature(function).parameters.values()
    except ValueError:
        raise TypeError(f"the arguments of this {name} are not known; write lambda q, k: f(q, k)") from None
    count = sum(one.default is one.empty and one.kind in positional for one in given)
    if count not in (2, 4):
        arguments = "(q_index, k_index) or (b, h, q_index, k_index)"
        raise TypeError(f"a mask function takes {arguments}, but {name} has {count} arguments without a default")
    one_pair = make_pairs(Range(1), Range(1), heads=q.shape[1], device=q.device, batch=q.shape[0])
    allowed = Rule(function, of_pair=count == 2).allows(
        one_pair
    )  # has as many rows and heads as the rule distinguishes
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        what = str(allowed.dtype).removeprefix("torch.") if isinstance(allowed, Tensor) else type(allowed).__name__
        raise TypeError(f"a mask function returns a boolean tensor, but {name} returned {what}")
    if allowed.ndim not in (0, 4):
        raise TypeError(f"a mask function acts on each pair by itself, but {name} changed the number of axes")
    rows, heads = allowed.shape[:2] if allowed.ndim else (1, 1)
    return Rule(function, count == 2, rows, heads)
