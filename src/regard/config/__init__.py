"""Strict, typed configuration without torch.

Every config is a frozen dataclass of int, float, bool, str, `Literal`, `T | None`, tuples, other configs, and
choices: open tagged unions, where adding a part is adding one class. The command line and a TOML file give
the same config.
"""

from regard.config.choice import Choice, kinds
from regard.config.keys import Key, keys, option
from regard.config.load import dump, load
from regard.config.override import override
from regard.config.toml import read, read_toml, to_toml

__all__ = [
    "Choice",
    "Key",
    "dump",
    "keys",
    "kinds",
    "load",
    "option",
    "override",
    "read",
    "read_toml",
    "to_toml",
]
