"""Linear recurrences h_t = a_t h_{t-1} + b_t, for whole sequences (Blelloch 1990, sec. 1.4).

Two steps in a row are one step: (a, b) then (c, d) is (c a, c b + d). This is associative, so that blocks of a sequence
can be computed side by side and joined afterwards (``blocked``). The gradient of a linear recurrence is the recurrence
in reverse (Martin and Cundy 2018, sec. 2.2), so that the backward pass costs as much as the forward pass.

The state of a state-space model is S times as large as its inputs. ``state_space`` computes a chunk of time at a time,
and each again in the backward pass: memory is that of inputs and outputs, not of states (Gu and Dao 2023, sec. 3.3).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

WIDE = 2**12  # elements of a time step from which on a CPU is fastest step by step
SHORT = 8  # steps that are not worth blocks
CHUNK = 2**18  # elements of a chunk: its states fit in a CPU's cache
CHUNK_GPU = 2**26


def loop(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """The definition: a and b [B, N, ...] and the state ``before`` [B, ...] to the states [B, N, ...], one by one."""
    states = torch.empty_like(b)
    for a_t, b_t, out in zip(a.unbind(1), b.unbind(1), states.unbind(1), strict=True):
        before = torch.addcmul(b_t, a_t, before, out=out)
    return states


def blocked(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """``loop`` in about 2 √N parallel steps: √N blocks side by side, then the states between them in the same way."""
    length = b.shape[1]
    size = math.isqrt(length - 1) + 1
    short = -length % size
    if short:  # at the end, where nothing follows
        a, b = (torch.cat((x, x.new_zeros(x.shape[0], short, *x.shape[2:])), dim=1) for x in (a, b))
    a, b = (x.unflatten(1, (-1, size)).transpose(1, 2) for x in (a, b))  # [B, size, blocks, ...]
    inside = loop(a, b, torch.zeros_like(b[:, 0]))
    decay = a.cumprod(1)  # from the state before each block
    ends = scan(decay[:, -1], inside[:, -1], before)
    first = torch.cat((before[:, None], ends[:, :-1]), dim=1)  # [B, blocks, ...]
    return torch.addcmul(inside, decay, first[:, None]).transpose(1, 2).flatten(1, 2)[:, :length]


def scan(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """``loop``, by the faster way for this size. No gradients."""
    return (blocked if _narrow(b) else loop)(a, b, before)


def scan_back(a: Tensor, b: Tensor) -> Tensor:
    """The recurrence in reverse: h_t = a*_{t+1} h_{t+1} + b_t, after an empty state."""
    a = a.conj() if a.is_complex() else a
    if _narrow(b):
        shifted = torch.cat((torch.zeros_like(a[:, :1]), a[:, 1:].flip(1)), dim=1)
        return blocked(shifted, b.flip(1), torch.zeros_like(b[:, 0])).flip(1)
    states = b.clone()
    inner = zip(a.unbind(1)[1:], states.unbind(1), states.unbind(1)[1:], strict=False)
    for a_t, now, later in reversed([*inner]):
        now.addcmul_(a_t, later)
    return states


def _narrow(b: Tensor) -> bool:
    """Whether a time step is too small to occupy the device."""
    return b.shape[1] > SHORT and (b.is_cuda or b[:, 0].numel() < WIDE)


@torch.library.custom_op("regard::linear_scan", mutates_args=())
def _linear_scan(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    return scan(a, b, before).contiguous()


@torch.library.custom_op("regard::linear_scan_back", mutates_args=())
def _linear_scan_back(a: Tensor, b: Tensor) -> Tensor:
    return scan_back(a, b).contiguous()


@_linear_scan.register_fake
@_linear_scan_back.register_fake
def _(a: Tensor, b: Tensor, before: Tensor | None = None) -> Tensor:
    return b.new_empty(b.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What the backward passes below need: the inputs, and the states or those before each chunk."""
    ctx.save_for_backward(*inputs, output[2] if isinstance(output, tuple) else output)


def _of_scan(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of b is the recurrence in reverse; that of a_t is it times h*_{t-1}."""
    a, _, before, states = ctx.saved_tensors
    of_b = _linear_scan_back(a, grad)
    of_a = of_b * torch.cat((before[:, None], states[:, :-1]), dim=1).conj()
    return of_a, of_b, a[:, 0].conj() * of_b[:, 0]


_linear_scan.register_autograd(_of_scan, setup_context=_save)


def linear_scan(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """a and b [B, N, ...] and the state ``before`` [B, ...] to all states [B, N, ...], real or complex."""
    if torch.compiler.is_exporting():  # a length that is not known: ONNX has an operator for it
        from torch._higher_order_ops.scan import scan as scan_operator

        step = lambda state, now: (now[0] * state + now[1], now[0] * state + now[1])  # noqa: E731
        return scan_operator(step, before, (a.transpose(0, 1), b.transpose(0, 1)))[1].transpose(0, 1)
    return _linear_scan(a, b, before)


def state_space(
    dt: Tensor, a: Tensor, u: Tensor, b: Tensor, c: Tensor, keep: Tensor | None, before: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = keep_t exp(dt_t A) h_{t-1} + u_t b_t and y_t = Re Σ c_t h_t, and the last state.

    u [B, N, D], dt [B or 1, N or 1, D], A [S, D], b [B, N, S] or [1, 1, S], c [B, N, S] or [1, 1, S, D], keep [B, N] (0
    at the first token of a document) or None, h [B, S, D]. Sums over S are vectorized over the channels D.
    """
    if torch.compiler.is_exporting():
        states = linear_scan(*_terms(dt, a, u, b, keep), before)
        return _read(states, c), states[:, -1]
    return _state_space(dt, a, u, b, c, keep, before)[:2]


def _terms(dt: Tensor, a: Tensor, u: Tensor, b: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """The coefficients [B, N, S, D] of the recurrence."""
    decay, inputs = torch.exp(dt[:, :, None] * a), u[:, :, None] * b[..., None]
    decay = decay if keep is None else decay * keep[:, :, None, None]
    return decay.expand_as(inputs), inputs


def _read(states: Tensor, c: Tensor) -> Tensor:
    """The outputs [B, N, D] of states."""
    return (c[:, :, None] @ states)[:, :, 0] if c.ndim == 3 else (states * c).sum(2).real


def _parts(before: Tensor, length: int, *inputs: Tensor | None) -> Iterator[tuple[slice, list[Any]]]:
    """The inputs in chunks of time; those that are constant in time are the same in each."""
    size = max(16, (CHUNK_GPU if before.is_cuda else CHUNK) // max(1, before.numel()))
    for at in range(0, length, size):
        part = slice(at, min(at + size, length))
        yield part, [x if x is None or x.shape[1] == 1 < length else x[:, part] for x in inputs]


@torch.library.custom_op("regard::state_space", mutates_args=())
def _state_space(
    dt: Tensor, a: Tensor, u: Tensor, b: Tensor, c: Tensor, keep: Tensor | None, before: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, the last state, and the states before each chunk."""
    starts, y = [before], u.new_empty(u.shape)
    for part, (dt_, u_, b_, c_, keep_) in _parts(before, u.shape[1], dt, u, b, c, keep):
        states = scan(*_terms(dt_, a, u_, b_, keep_), starts[-1])
        y[:, part] = _read(states, c_)
        starts.append(states[:, -1].clone())
    return y, starts.pop(), torch.stack(starts, dim=1)


@_state_space.register_fake
def _(dt: Tensor, a: Tensor, u: Tensor, b: Tensor, c: Tensor, keep: Tensor | None, before: Tensor):
    chunks = sum(1 for _ in _parts(before, u.shape[1]))
    return u.new_empty(u.shape), before.new_empty(before.shape), before[:, None].repeat(1, chunks, 1, 1)


@torch.library.custom_op("regard::state_space_back", mutates_args=())
def _state_space_back(
    of_y: Tensor,
    of_last: Tensor,
    dt: Tensor,
    a: Tensor,
    u: Tensor,
    b: Tensor,
    c: Tensor,
    keep: Tensor | None,
    starts: Tensor,
) -> list[Tensor]:
    """The gradients of dt, a, u, b, c and the first state; the states are computed again, chunk by chunk."""
    totals = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (dt, a, u, b, c)]
    chunks = list(enumerate(_parts(starts[:, 0], u.shape[1], of_y, dt, u, b, c, keep)))
    for i, (part, (of_y_, dt_, u_, b_, c_, keep_)) in reversed(chunks):
        decay, inputs = _terms(dt_, a, u_, b_, keep_)
        states, before = scan(decay, inputs, starts[:, i]), starts[:, i]
        grad = of_y_[:, :, None] * (c_[..., None] if c.ndim == 3 else c_).conj()
        grad[:, -1] += of_last
        grad = scan_back(decay, grad)
        of_last = decay[:, 0].conj() * grad[:, 0]
        of_c = (states @ of_y_[..., None])[..., 0] if c.ndim == 3 else of_y_[:, :, None] * states.conj()
        of_u, of_b = (grad * b_[..., None].conj()).sum(2), (grad @ u_[..., None].to(grad.dtype))[..., 0]
        grad[:, 1:] *= states[:, :-1].conj()
        grad[:, 0] *= before.conj()
        grad *= decay.conj()  # now of the exponent dt A
        of_dt, of_a = (grad * a.conj()).sum(2), (grad * dt_[:, :, None]).sum((0, 1))
        for total, found in zip(totals, (of_dt, of_a, of_u, of_b, of_c), strict=True):
            found = found if total.is_complex() else found.real
            of_part = total[:, part] if total.ndim > 2 and total.shape[1] > 1 else total
            of_part += found.sum_to_size(of_part.shape)
    return [*totals, of_last]


@_state_space_back.register_fake
def _(of_y, of_last, dt, a, u, b, c, keep, starts) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (dt, a, u, b, c, of_last)]


def _of_state_space(ctx: Any, of_y: Tensor, of_last: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, _, starts = ctx.saved_tensors
    *of_inputs, of_before = _state_space_back(of_y, of_last, *inputs, starts)
    return (*of_inputs, None, of_before)


_state_space.register_autograd(_of_state_space, setup_context=_save)
