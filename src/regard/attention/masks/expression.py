"""Mask expressions as text: ``causal & window(8) | sinks(2)``, parsed without evaluating code, and written back.

Names are those of all mask classes in lower case; a new mask needs no entry here. Python's ``ast`` parses the text, so
``&``, ``|``, ``~`` and parentheses bind as in code. Only names, calls, these operators, integers, booleans and lists of
them are accepted; errors name the position. Law: ``parse(write(mask))`` equals the mask.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import NoReturn, get_type_hints

import torch
from torch import Tensor

from regard.attention.masks.mask import And, Mask, Not, Or
from regard.attention.masks.tables import Rule
from regard.config import nearest
from regard.config.parts import NameTaken, catalog, check_dataclass, outside, place_of
from regard.errors import UserError

MOST = 2**62  # greater integers do not fit a tensor
LONGEST = 10_000  # characters; Python's parser is recursive
SHOWN = 16  # a brief text writes out tensors of up to this many elements

Argument = int | Mask | list["Argument"]  # of a mask, as it is parsed


def names() -> dict[str, type[Mask]]:
    """Every mask class that can be written, by its name in lower case."""
    found: dict[str, type[Mask]] = {}
    for cls in _subclasses(Mask):
        if is_dataclass(check_dataclass(cls)) and cls not in (And, Or, Not, Rule):
            name = cls.__name__.lower()
            other = found.get(name, cls)
            if other.__module__ != cls.__module__ and (outside(cls) or outside(other)):
                raise NameTaken(f"there is a mask {name!r} already ({place_of(other)}); rename that of {place_of(cls)}")
            found[name] = cls
    return found


catalog("mask", names)


def _subclasses(cls: type[Mask]) -> Iterator[type[Mask]]:
    for subclass in cls.__subclasses__():
        if not subclass.__name__.startswith("_"):
            yield subclass
            yield from _subclasses(subclass)


def parse(text: str) -> Mask:
    """The mask of an expression; a MaskExpressionError names the position of an error.

    >>> parse("causal & window(8, ahead=2) | global(0)")
    Or(left=And(left=Causal(), right=Window(size=8, ahead=2)), right=Global(orders=(0,)))
    """
    return _Parser(text).mask()


class MaskExpressionError(UserError):
    """An invalid mask expression; ``position`` is the 1-based character position of the error, if known."""

    def __init__(self, message: str, position: int | None = None):
        super().__init__(message)
        self.position = position


class _Parser:
    """The parser of one expression."""

    def __init__(self, text: str):
        self.text = text
        self.known = names()

    def mask(self) -> Mask:
        if not self.text.strip():
            example = f"write one such as 'causal & window(8)'; the masks are: {self._names()}"
            raise MaskExpressionError(f"the mask expression is empty; {example}")
        if len(self.text) > LONGEST:
            length = f"{len(self.text):,} characters; at most {LONGEST:,} are read"
            raise MaskExpressionError(f"the mask expression has {length}")
        # `global` is a keyword of Python: capitalized it is a name of the same length.
        reserved = "|".join(name for name in self.known if keyword.iskeyword(name))
        code = re.sub(rf"\b({reserved})\b", lambda m: m[0].capitalize(), self.text) if reserved else self.text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns about "8and"
                tree = ast.parse(code.replace("\n", " ").strip(), mode="eval")
            return self._mask(tree.body)
        except SyntaxError as error:
            position = max(1, error.offset or 1) + len(self.text) - len(self.text.lstrip())
            self._refuse("the expression cannot be parsed", position=min(position, len(self.text)))
        except (ValueError, RecursionError, MemoryError) as error:
            self._refuse(f"the expression cannot be parsed ({error})")

    def _mask(self, node: ast.expr) -> Mask:
        match node:
            case ast.BinOp(left, ast.BitAnd(), right):
                return self._mask(left) & self._mask(right)
            case ast.BinOp(left, ast.BitOr(), right):
                return self._mask(left) | self._mask(right)
            case ast.UnaryOp(ast.Invert(), inner):
                return ~self._mask(inner)
            case ast.Name():
                return self._build(node, [], {})
            case ast.Call(ast.Name() as name, given, named):
                if len({word.arg for word in named} - {None}) < len(named):
                    self._refuse("each argument is named once", node)
                values = [self._value(one) for one in given]
                return self._build(name, values, {str(word.arg): self._value(word.value) for word in named})
            case ast.BoolOp() | ast.UnaryOp(ast.Not()):
                self._refuse("masks are combined with &, | and ~, not with words", node)
            case _:
                self._refuse("expected a mask: a name, with arguments in parentheses if it has any", node)

    def _value(self, node: ast.expr) -> Argument:
        match node:
            case ast.Constant(int() as value) if value < MOST:
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)) if type(value) is int and value < MOST:
                return -value
            case ast.Constant(int() as value) | ast.UnaryOp(_, ast.Constant(int() as value)) if value >= MOST:
                self._refuse("this number is too large", node)
            case ast.Tuple(items) | ast.List(items):
                return [self._value(one) for one in items]
            case ast.Name() | ast.Call() | ast.BinOp() | ast.UnaryOp(ast.Invert()):
                return self._mask(node)
            case _:
                self._refuse("an argument is an integer or a list of integers", node)

    def _build(self, node: ast.Name, given: list[Argument], named: dict[str, Argument]) -> Mask:
        cls = self.known.get(node.id.lower())
        if cls is None:
            near = nearest(node.id.lower(), self.known)
            hint = f"did you mean {near}?" if near else f"there are: {self._names()}"
            self._refuse(f"there is no mask {node.id!r}; {hint}", node)
        arguments, hints = _arguments(cls), get_type_hints(cls)
        only_list = len(arguments) == 1 and _is_tuple(hints[arguments[0].name])
        if only_list and not named and (len(given) != 1 or not isinstance(given[0], list)):
            given = [given]  # global(0, 5) is global([0, 5])
        try:
            bound = inspect.signature(cls).bind(*given, **named).arguments
            return cls(**{name: _typed(value, hints[name]) for name, value in bound.items()})
        except (TypeError, ValueError, RuntimeError) as error:
            self._refuse(f"{usage(cls)} cannot take these arguments ({error})", node)

    def _refuse(self, what: str, node: ast.expr | None = None, position: int | None = None) -> NoReturn:
        if node is not None:
            stripped = len(self.text) - len(self.text.lstrip())
            before = self.text.strip().encode()[: node.col_offset].decode(errors="ignore")
            position = len(before) + stripped + 1
        place = "" if position is None else f" (position {position})"
        raise MaskExpressionError(f"mask {self.text.strip()!r}: {what}{place}", position)

    def _names(self) -> str:
        return ", ".join(name + outside(cls) for name, cls in self.known.items())


def usage(cls: type[Mask]) -> str:
    """The syntax of a mask.

    >>> from regard.attention import Causal, Window
    >>> usage(Window), usage(Causal)
    ('window(size, ahead=0)', 'causal')
    """
    arguments = [f.name if f.default is MISSING else f"{f.name}={f.default}" for f in _arguments(cls)]
    return cls.__name__.lower() + (f"({', '.join(arguments)})" if arguments else "")


def write(mask: Mask, *, brief: bool = False) -> str:
    """A mask as an expression that ``parse`` reads back; ``brief`` writes large tensors as their shape.

    >>> from regard.attention import Causal, Global, Window
    >>> write(Causal() & (Window(8) | ~Global((0, 5))))
    'causal & (window(8) | ~global(0, 5))'
    """
    return _written(mask, 0, brief)


def _written(mask: Mask, strength: int, brief: bool) -> str:
    """``strength``: the precedence of the context: 0 none, 1 right of |, 2 left of &, 3 right of &, 4 after ~."""
    match mask:
        case Rule():
            return f"<{mask.name}>"
        case Or(left, right):
            text, own = f"{_written(left, 0, brief)} | {_written(right, 1, brief)}", 0
        case And(left, right):
            text, own = f"{_written(left, 2, brief)} & {_written(right, 3, brief)}", 2
        case Not(inner):
            text, own = f"~{_written(inner, 4, brief)}", 4
        case _:
            return _leaf(mask, brief)
    return f"({text})" if own < strength else text


def _leaf(mask: Mask, brief: bool) -> str:
    name, declared, arguments = type(mask).__name__.lower(), _arguments(type(mask)), list[str]()
    for number, field in enumerate(declared):
        value = getattr(mask, field.name)
        if not isinstance(value, Tensor | Mask) and field.default is not MISSING and value == field.default:
            continue
        skipped = len(arguments) < number  # an argument before it has its default
        arguments.append(f"{field.name}=" * skipped + _spelled(value, brief))
    if len(declared) == 1 and arguments and arguments[0].startswith("(") and arguments[0] != "()":
        arguments = [arguments[0][1:-1].removesuffix(",")]  # global(0, 5)
    return name + (f"({', '.join(arguments)})" if arguments else "")


def _spelled(value: object, brief: bool) -> str:
    if isinstance(value, Tensor):
        if brief and value.numel() > SHOWN:
            return f"<{'×'.join(map(str, value.shape))}>"
        return repr((value.int() if value.dtype == torch.bool else value).tolist())
    return _written(value, 0, brief) if isinstance(value, Mask) else repr(value)


def _arguments(cls: type[Mask]) -> list[Field[object]]:
    # Every mask with a name is a dataclass; their base class is not.
    return [field for field in fields(cls) if field.init]  # pyright: ignore[reportArgumentType]


def _is_tuple(hint: object) -> bool:
    return str(hint).startswith("tuple")


def _typed(value: Argument, hint: object) -> object:
    """A value of the type of its field: numbers unchanged, lists as tuples or tensors."""
    if "Tensor" in str(hint):
        if not isinstance(value, list) or not value:
            raise ValueError("expected a list of numbers")
        table = torch.tensor(value)
        # Tables of zeros and ones are graphs and layouts; labels may be booleans as well.
        return table.bool() if table.ndim > 1 and bool(((table == 0) | (table == 1)).all()) else table
    wants_list = _is_tuple(hint)
    if isinstance(value, list) != wants_list:
        raise ValueError("expected a list of numbers" if wants_list else f"expected a single number, not {value}")
    return _frozen(value) if wants_list else value


def _frozen(value: Argument) -> object:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
