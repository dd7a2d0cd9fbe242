"""Mask expressions as text: ``causal & window(8) | sinks(2)``, read without evaluating anything and written back.

Names are those of the mask classes in small letters, found by being there: a new mask needs no line here. Python's own
grammar is parsed (``ast``), so ``&``, ``|``, ``~`` and brackets bind as they do in code; of the tree only names, calls,
those three operators, whole numbers, truth values and lists of them are taken, and everything else is refused by its
position. Law: ``parse(write(mask))`` is the mask again.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NoReturn, get_type_hints

import torch
from torch import Tensor

from regard.attention.masks.mask import And, Mask, Not, Or
from regard.config import nearest
from regard.errors import UserError

MOST = 2**62  # a number beyond this fits no tensor
LONGEST = 10_000  # characters; Python's parser is recursive
SHOWN = 16  # elements of a tensor that a brief text spells out


def names() -> dict[str, type[Mask]]:
    """Every mask that is not made of others by an operator, by its class's name in small letters."""
    return {cls.__name__.lower(): cls for cls in _below(Mask) if is_dataclass(cls) and cls not in (And, Or, Not)}


def _below(cls: type[Mask]) -> Iterator[type[Mask]]:
    for one in cls.__subclasses__():
        if not one.__name__.startswith("_"):
            yield one
            yield from _below(one)


def parse(text: str) -> Mask:
    """The mask that an expression describes; a UserError names the position of what is wrong with it.

    >>> parse("causal & window(8, ahead=2) | global(0)")
    Or(left=And(left=Causal(), right=Window(size=8, ahead=2)), right=Global(orders=(0,)))
    """
    return _Reader(text).mask()


class MaskExpressionError(UserError):
    """An invalid mask expression; ``position`` is the 1-based character position of the error, if known."""

    def __init__(self, message: str, position: int | None = None):
        super().__init__(message)
        self.position = position


class _Reader:
    """One expression on its way to a mask."""

    def __init__(self, text: str):
        self.text = text
        self.known = names()

    def mask(self) -> Mask:
        if not self.text.strip():
            examples = f"write one such as 'causal & window(8)'{self._others()}"
            raise MaskExpressionError(f"the mask expression is empty; {examples}")
        if len(self.text) > LONGEST:
            length = f"{len(self.text):,} characters; at most {LONGEST:,} are read"
            raise MaskExpressionError(f"the mask expression has {length}")
        # `global` is a word of Python's own: with a capital letter it is a name, and no position moves.
        reserved = "|".join(name for name in self.known if keyword.iskeyword(name))
        code = re.sub(rf"\b({reserved})\b", lambda m: m[0].capitalize(), self.text) if reserved else self.text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "8and": what cannot be read is refused, what can is meant
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
                return self._made(node, [], {})
            case ast.Call(ast.Name() as name, given, named):
                if len({word.arg for word in named} - {None}) < len(named):
                    self._refuse("each argument is named once", node)
                values = [self._value(one) for one in given]
                return self._made(name, values, {str(word.arg): self._value(word.value) for word in named})
            case ast.BoolOp() | ast.UnaryOp(ast.Not()):
                self._refuse("masks are combined with &, | and ~, not with words", node)
            case _:
                self._refuse("here a mask is wanted: a name, perhaps with numbers in brackets", node)

    def _value(self, node: ast.expr) -> Any:
        """An argument: a whole number, a truth value, a list of arguments, or a mask."""
        match node:
            case ast.Constant(bool() as value):
                return value
            case ast.Constant(int() as value):
                return self._fitting(value, node)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)) if not isinstance(value, bool):
                return -self._fitting(value, node)
            case ast.Tuple(items) | ast.List(items):
                return [self._value(one) for one in items]
            case ast.Name() | ast.Call() | ast.BinOp() | ast.UnaryOp(ast.Invert()):
                return self._mask(node)
            case _:
                self._refuse("an argument is a whole number or a list of them", node)

    def _fitting(self, value: int, node: ast.expr) -> int:
        if value >= MOST:
            self._refuse("this number is too large", node)
        return value

    def _made(self, node: ast.Name, given: list[Any], named: dict[str, Any]) -> Mask:
        cls = self.known.get(node.id.lower())
        if cls is None:
            near = nearest(node.id.lower(), self.known)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(self.known)}"
            self._refuse(f"there is no mask {node.id!r}; {hint}", node)
        wanted = _arguments(cls)
        if len(wanted) == 1 and _is_tuple(wanted[0], cls) and (len(given) != 1 or not isinstance(given[0], list)):
            given = [given] if given or not named else given  # global(0, 5) is global([0, 5])
        try:
            bound = inspect.signature(cls).bind(*given, **named).arguments
            hints = get_type_hints(cls)
            return cls(**{name: _typed(value, hints.get(name)) for name, value in bound.items()})
        except (TypeError, ValueError, RuntimeError) as error:
            self._refuse(f"{usage(cls)} cannot take these arguments ({error})", node)

    def _refuse(self, what: str, node: ast.expr | None = None, position: int | None = None) -> NoReturn:
        if node is not None:
            stripped = len(self.text) - len(self.text.lstrip())
            before = self.text.strip().encode()[: node.col_offset].decode(errors="ignore")
            position = len(before) + stripped + 1
        place = "" if position is None else f" (position {position})"
        raise MaskExpressionError(f"mask {self.text.strip()!r}: {what}{place}", position)

    def _others(self) -> str:
        return f"; the masks are: {', '.join(self.known)}"


def usage(cls: type[Mask]) -> str:
    """How a mask is written.

    >>> from regard.attention.masks.mask import Causal, Window
    >>> usage(Window), usage(Causal)
    ('window(size, ahead=0)', 'causal')
    """
    told = [f.name if f.default is MISSING else f"{f.name}={f.default}" for f in _arguments(cls)]
    return cls.__name__.lower() + (f"({', '.join(told)})" if told else "")


def write(mask: Mask, *, brief: bool = False) -> str:
    """A mask as an expression that ``parse`` reads back; ``brief`` tells of large tensors by their shape only.

    >>> from regard.attention.masks.mask import Causal, Global, Window
    >>> write(Causal() & (Window(8) | ~Global((0, 5))))
    'causal & (window(8) | ~global(0, 5))'
    """
    return _written(mask, 0, brief)


def _written(mask: Mask, strength: int, brief: bool) -> str:
    """``strength``: how tightly what stands around binds: 0 nothing, 1 right of |, 2 left of &, 3 right of it, 4 ~."""
    match mask:
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
    name, told = type(mask).__name__.lower(), []
    for field in _arguments(type(mask)):
        value = getattr(mask, field.name)
        if not isinstance(value, Tensor | Mask) and field.default is not MISSING and value == field.default:
            continue
        plain = _spelled(value, brief)
        skipped = len(told) < _arguments(type(mask)).index(field)  # what stood before had its default
        told.append(f"{field.name}={plain}" if skipped else plain)
    if len(_arguments(type(mask))) == 1 and told and told[0].startswith("(") and told[0] != "()":
        told = [told[0][1:-1].removesuffix(",")]  # global(0, 5)
    return name + (f"({', '.join(told)})" if told else "")


def _spelled(value: Any, brief: bool) -> str:
    if isinstance(value, Tensor):
        if brief and value.numel() > SHOWN:
            return f"<{'×'.join(map(str, value.shape))}>"
        return repr((value.int() if value.dtype == torch.bool else value).tolist())
    return _written(value, 0, brief) if isinstance(value, Mask) else repr(value)


def _arguments(cls: type[Mask]) -> list[Field[Any]]:
    return [field for field in fields(cls) if field.init]  # type: ignore[arg-type]


def _is_tuple(field: Field[Any], cls: type[Mask]) -> bool:
    return str(get_type_hints(cls)[field.name]).startswith("tuple")


def _typed(value: Any, hint: Any) -> Any:
    """A value as the class wants it: numbers as they are, lists as tuples or tensors."""
    if "Tensor" in str(hint):
        if not isinstance(value, list) or not value:
            raise ValueError("a list of numbers is wanted")
        found = torch.tensor(value)
        # Tables of zeros and ones are those of graphs and layouts; labels may be truth values just as well.
        return found.bool() if found.ndim > 1 and bool(((found == 0) | (found == 1)).all()) else found
    wants_list = str(hint).startswith("tuple")
    if isinstance(value, list) != wants_list:
        raise ValueError("a list of numbers is wanted" if wants_list else f"a single number is wanted, not {value}")
    return _frozen(value) if wants_list else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
