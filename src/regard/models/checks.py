"""Checks of sizes and capacities, which the models share."""

from numbers import Integral

from regard.errors import UserError
from regard.models.base import ModelConfig, Seq2SeqState, State


def check_capacity(state: State | Seq2SeqState, count: int) -> None:
    """Refuse more tokens than the state has room for."""
    if state.capacity is not None and state.used + count > state.capacity:
        raise UserError(
            f"the state holds {state.capacity} tokens, {state.used} are there and {count} more were given; "
            "start it with a greater capacity"
        )


def check_sizes(config: ModelConfig, *names: str) -> None:
    """Each size is at least 1; None is allowed where a size is optional."""
    for name in names:
        size = getattr(config, name)
        if size is not None and not isinstance(size, Integral):
            raise ValueError(f"{name} must be a whole number, not {size!r}")
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")


def check_dropouts(config: ModelConfig, *names: str) -> None:
    """Each probability is in [0, 1); None is allowed where it is optional."""
    for name in names:
        share = getattr(config, name)
        if share is not None and not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {share}")
