"""regard: sequence models on one attention operator.

The names in ``__all__`` are the public interface; docs/python.md shows how to use them. They are imported on first use,
so that ``import regard`` does not import torch. Everything else may change.
"""

from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "attention": ("attend", "Causal", "Full", "Mask", "Packed", "Padded", "Softmax", "Window"),
    "config": ("load_parts", "override"),
    "errors": ("UserError",),
    "generate": ("Prompt", "Sampling", "TextGenerator"),
    "generate.load": ("load",),
    "models": ("GPT", "GPTConfig", "LanguageModel"),
    "nn": ("DecoderLayer", "EncoderLayer", "MultiHeadAttention"),
    "prove": ("certify",),
    "serve.html_file": ("show",),
    "recipes": ("recipe",),
    "train": ("Experiment", "Observer"),
    "train.tensorboard": ("TensorBoard",),
    "train.trackers": ("MLflow", "WandB"),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_PUBLIC, "train"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "train":  # the package is a function too
        return importlib.import_module("regard.train")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(importlib.import_module(f"regard.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
