"""regard: sequence models on one attention operator."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``regard.show``, without importing torch before it is wanted."""
    if name == "show":
        from regard.serve.show import show

        return show
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
