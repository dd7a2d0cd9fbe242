"""The command line: one parser for the options of a command and for the keys of a config."""

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from regard.config.key_path import FlagText, KeyPath, flag_text
from regard.config.load import read_onto
from regard.config.notation import PlainTable
from regard.config.shape import Boolean, Maybe, OneOf, Shape, TupleOf
from regard.config.table import Table, default_of, example_of, plain
from regard.errors import UserError

C = TypeVar("C")
METAVARS = {"int": "INT", "float": "NUMBER", "str": "TEXT", "path": "PATH"}
PLACE = KeyPath("command line", style="flag")


class Arguments(NamedTuple):
    """A parsed command line."""

    positional: list[str]
    options: PlainTable  # options of the command by field name, such as "top_k" or "layout.shard"
    keys: PlainTable  # every other option by name, such as "model.width": keys of a config


def parse(
    argv: Sequence[str], command: Table | None = None, unknown: Callable[[str], UserError | None] | None = None
) -> Arguments:
    """The arguments, in any order. `command` declares the command's own options.

        --name x   --name=x            a value; one that begins with `--` needs the `=`
        --json   --no-browser          a switch of the command
        --prompt a b c                 an option that takes several values
        --with a.py --with b.py        an option that may be repeated
        --layout.shard 2               a key of an option that is a table
        --model.width 256              a key of a config always takes one value, except
        --no-train.compile             which means false

    `unknown` returns the error for a name that is neither an option nor has a dot, or None if it is a key too.
    """
    found = Arguments([], {}, {})
    left = list(argv)
    while left:
        argument = left.pop(0)
        if not argument.startswith("--") or argument == "--":
            found.positional.append(argument)
            continue
        written, equals, text = argument[2:].partition("=")
        negated = written.startswith("no-")
        name = written.removeprefix("no-")
        path, field, shape = _declared(command, name, negated)
        outside = field is None and ("." not in name or (command and name.partition(".")[0] in command.fields))
        error = unknown(f"--{written}") if unknown and outside else None
        if error is not None:
            raise error
        if negated or isinstance(shape, Boolean):
            if equals:
                right = f"`--{written}`" if shape else f"`--{written}` or `--{name} {text or 'true'}`"
                switch = "is a switch and " if shape else ""
                raise PLACE.error(f"`--{written}` {switch}takes no value; write {right}")
            value: object = not negated
        else:
            several, repeated = isinstance(shape, TupleOf), bool(field and "repeated" in field.metadata)
            texts = [FlagText(text)] if equals else _take(left, several and not repeated)
            if not texts:
                raise PLACE.error(
                    f"`--{written}` has no value; write `--{written} VALUE` (true or false for a switch), or "
                    f"`--{written}=VALUE` if the value begins with `--`"
                )
            value = texts if several else texts[0]
            if field is not None and repeated:
                value = [*found.options.pop(path, []), *texts]
        group, key = (found.keys, name) if field is None else (found.options, path)
        if key in group:
            raise PLACE.error(f"`--{name}` is given twice{_both(group[key], value)}; leave one out")
        group[key] = value
    return found


def override(config: C, argv: Sequence[str] | Mapping[str, object]) -> C:
    """`config` with the values that command-line arguments, or `parse(argv).keys`, give to its keys.

        --model.width 256   --model.width=256          a value
        --train.compile true   --no-train.compile      true or false
        --model.position rotary                        a kind: another one starts from its own defaults
        --model.position.base 5e5                      a key of that kind, before or after it
        --train.betas 0.9,0.95   --names '["a,b"]'     a list, plain or in TOML
        --model.position '{kind = "rotary"}'           a whole table in TOML, which replaces the former one
        --model.kv_heads none                          no value

    The order of the arguments does not matter.
    """
    if isinstance(argv, Mapping):
        keys = argv
    else:
        stray, _, keys = parse(argv)
        if stray:
            raise PLACE.error(f"`{stray[0]}` belongs to no key; write `--key value`, such as `--seed 1`")
    tree: PlainTable = {}
    for name, value in keys.items():
        path = name.split(".")
        if not all(path):
            raise PLACE.error(f"`--{name}` is not a key; write names with dots between them, such as `--model.width`")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[""] = value  # under "", since keys below this one may be given as well
    return read_onto(config, type(config), _settled(tree), PLACE)


def read_options(command: Table, found: Arguments, title: str) -> Any:
    """The options of a command, an instance of its dataclass; `title` names the command in errors."""
    values = {}
    for name, given in found.options.items():
        name, _, key = name.partition(".")
        declared, shape = command.fields[name]
        base, given = (values.get(name, default_of(declared)), {key: given}) if key else (None, given)
        values[name] = shape.read(given, base, PLACE.child(flag_name(name), example_of(declared)))
    words = [FlagText(word) for word in found.positional]
    takes = []
    for name, (declared, shape) in command.fields.items():
        if "positional" not in declared.metadata:
            continue
        takes.append(name.upper())
        many = isinstance(shape, TupleOf)
        given, words = (words, []) if many else (words[:1], words[1:])
        if given:
            place = KeyPath(PLACE.source, (name.upper(),), "positional")
            values[name] = shape.read(given if many else given[0], None, place)
        elif "required" in declared.metadata:
            raise UserError(f"`{title}` needs {name.upper()}: {declared.metadata['help']}")
    if words:
        raise UserError(
            f"`{title}` takes {' '.join(takes) or 'nothing'}, then options: there is no place for {str(words[0])!r} "
            "(text with spaces needs quotes)"
        )
    return command.cls(**values)


def to_arguments(command: Table, options: object, keys: Mapping[str, object]) -> list[str]:
    """The arguments that `parse` and `read_options` read as these options and keys; defaults are left out."""
    found: list[str] = []
    for path, (declared, _) in options_of_table(command).items():
        value, flag = reduce(getattr, path.split("."), options), flag_name(path)
        if value == default_of(declared):
            continue
        if isinstance(value, bool):
            found.append(f"--{'' if value else 'no-'}{flag}")
        elif "positional" in declared.metadata:
            found.append(str(value))
        else:
            found += [f"--{flag}={each}" for each in (value if isinstance(value, tuple) else (value,))]
    return found + [f"--no-{name}" if value is False else f"--{name}={value}" for name, value in keys.items()]


def help_text(command: Table, title: str, about: str) -> str:
    """The text of `--help`: usage, description, positional arguments and options with their defaults."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    words, options, usage = [], [("-h, --help", "show this help")], []
    for name, (declared, shape) in options_of_table(command).items():
        default = default_of(declared)
        default = None if default is False or default == () else default
        row = declared.metadata.get("help", "")
        if default is not None and default is not True and "required" not in declared.metadata:
            row += f" (default: {flag_text(plain(default))})"
        if "positional" in declared.metadata:
            several = " ..." if isinstance(shape, TupleOf) else ""
            usage.append(name.upper() if "required" in declared.metadata else f"[{name.upper()}{several}]")
            words.append((name.upper(), row))
        else:
            negated = isinstance(_inner(shape), Boolean) and default is True
            metavar = declared.metadata.get("metavar") or _metavar(shape)
            options.append((f"--{'no-' * negated}{flag_name(name)} {metavar}".strip(), row))
    lines = [f"usage: {' '.join([title, *usage])} [options]", "", *about.splitlines()]
    for heading, rows in (("arguments:", words), ("options:", options)):
        if rows:
            lines += ["", heading, *(line for row in rows for line in _row(*row, width))]
    return "\n".join(lines)


def flag_name(field: str) -> str:
    """`top_k` is written `--top-k`; `with_` (`with` is a keyword of Python) is `--with`."""
    return field.rstrip("_").replace("_", "-")


def options_of_table(command: Table) -> dict[str, tuple[Field[object], Shape]]:
    """Each option of a command with its shape; for one that is a table, each of its keys: "layout.shard"."""
    found = {}
    for name, (declared, shape) in command.fields.items():
        inner = shape.fields if isinstance(shape, Table) else {}
        found |= {f"{name}.{key}": value for key, value in inner.items()} or {name: (declared, shape)}
    return found


def _declared(command: Table | None, flag: str, negated: bool) -> tuple[str, Field[object] | None, Shape | None]:
    """The path of the command's option of that name, its field and its shape."""
    for path, (field, shape) in options_of_table(command).items() if command else ():
        if flag_name(path) == flag.replace("_", "-") and (not negated or isinstance(_inner(shape), Boolean)):
            return path, field, _inner(shape)
    return "", None, None


def _inner(shape: Shape) -> Shape:
    return shape.inner if isinstance(shape, Maybe) else shape


def _take(left: list[str], several: bool) -> list[FlagText]:
    """Remove the values of an option from the front of `left`."""
    count = next((i for i, word in enumerate(left) if word.startswith("--")), len(left)) if several else 1
    texts = [FlagText(word) for word in left[:count] if not word.startswith("--")]
    del left[: len(texts)]
    return texts


def _both(old: object, new: object) -> str:
    texts = [" ".join(value) if isinstance(value, list) else value for value in (old, new)]
    both = " and ".join(repr(str(text)) for text in texts if isinstance(text, str) and text)
    return f" ({both})" if both else ""


def _settled(tree: PlainTable) -> PlainTable:
    """The tree with every branch that holds only a value replaced by that value."""
    return {
        name: branch if name == "" else branch[""] if set(branch) == {""} else _settled(branch)
        for name, branch in tree.items()
    }


def _metavar(shape: Shape) -> str:
    shape = _inner(shape)
    if isinstance(shape, TupleOf):
        return f"{_metavar(shape.elements[0])} ..."
    return "|".join(shape.values) if isinstance(shape, OneOf) else METAVARS.get(shape.name, "")


def _row(name: str, about: str, width: int) -> Iterator[str]:
    column = 26
    first, *rest = textwrap.wrap(about, max(30, width - column)) or [""]
    if len(name) > column - 4:
        yield f"  {name}"
        yield " " * column + first
    else:
        yield f"  {name:{column - 2}}{first}"
    yield from (" " * column + line for line in rest)
