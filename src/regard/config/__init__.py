"""Strict, typed configuration without torch.

Every config is a frozen dataclass of int, float, bool, str, `Literal`, `T | None`, tuples, other configs, and
choices: open tagged unions, where adding a part is adding one class. The command line and a TOML file give
the same config.

The names imported here are the public ones.
"""

from regard.config.choice import Choice, Config, add_presets, kinds, presets
from regard.config.command_line import override, parse
from regard.config.key_path import hint, nearest
from regard.config.keys import Key, argument, keys, option
from regard.config.load import dump, load, read_toml, to_toml
from regard.config.parts import load_parts
