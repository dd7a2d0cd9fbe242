"""A model asked for what each of its modules gives, in a side pass that leaves nothing behind."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.doctor.inside import Terms
from regard.look import evaluation_mode

Outputs = list[tuple[str, Tensor]]  # in order of execution, the innermost first; [B, N, ...]


class Enough(Exception):
    """Ends a pass that has shown what it was made for."""


class Probe(NamedTuple):
    """A model that is asked for what each of its modules gives for tokens of one shape [B, N]."""

    model: nn.Module
    terms: Terms
    shape: tuple[int, ...]

    def one(self, batch: Any, name: str) -> Tensor | None:
        """What that module gives; nothing behind it is computed."""
        found: list[Tensor] = []

        def note(_: nn.Module, given: Any, out: Any) -> None:
            by_place = _by_place(out[0] if isinstance(out, tuple) else out, *self.shape)
            found.extend(() if by_place is None else (by_place.detach().clone(),))
            raise Enough

        hook = self.model.get_submodule(name).register_forward_hook(note)
        try:
            with evaluation_mode(self.model), suppress(Enough):
                self.terms(self.model, batch)
        finally:
            hook.remove()
        return found[0] if found else None

    def outputs(self, batch: Any) -> Outputs:
        """Of every module that gives something for each token, what it gave."""
        found: Outputs = []

        def watch(name: str) -> Any:
            def note(_: nn.Module, given: Any, out: Any) -> None:
                first = out[0] if isinstance(out, tuple) and len(out) else out
                by_place = _by_place(first, *self.shape) if isinstance(first, Tensor) else None
                if by_place is not None and by_place.is_floating_point():
                    found.append((name, by_place.detach().clone()))

            return note

        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if name:
                    stack.callback(module.register_forward_hook(watch(name)).remove)
            stack.enter_context(evaluation_mode(self.model))
            self.terms(self.model, batch)
        return found


def _by_place(x: Tensor, rows: int, length: int) -> Tensor | None:
    """[B, N, ...] of [B, N, C], [B, N, H, D] or [B, H, N, D]; None for anything else, and where it could be both."""
    places = [axis for axis in (1, 2) if x.ndim > axis + 1 and x.shape[axis] == length]
    return x.transpose(1, places[0]) if x.ndim in (3, 4) and len(x) == rows and len(places) == 1 else None


def apart_of(one: Tensor, other: Tensor) -> float:
    """The greatest difference, as a share of the greatest number."""
    if one.shape != other.shape or not one.numel():
        return 0.0
    size = float(one.float().abs().amax())
    return float((one.float() - other.float()).abs().amax()) / size if size > 0 else 0.0


def sound(tokens: Tensor, vocabulary: int) -> bool:
    """Whether an embedding has them all."""
    least, most = tokens.aminmax()
    return int(least) >= 0 and int(most) < vocabulary
