"""The attentions that are tried, and their budgets: every registered kind, each over a range of one of its options.

A budget is the option that determines the cost: window size, random features, rank, rounds of hashing, number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from regard.attention import AttentionConfig, SoftmaxConfig
from regard.config import kinds, load, nearest
from regard.errors import UserError

#: The default number of budgets of a kind, each twice the one before.
STEPS = 5


@dataclass(frozen=True)
class Trial:
    """One attention at one budget."""

    kind: str
    settings: tuple[tuple[str, Any], ...]  # the options that are set
    config: AttentionConfig

    @property
    def budget(self) -> str:
        """In words: "64", or "rounds 2, buckets 16" if more than one option is set."""
        if len(self.settings) == 1:
            return str(self.settings[0][1])
        return ", ".join(f"{name} {value}" for name, value in self.settings) or "defaults"

    @property
    def size(self) -> float | None:
        """The budget as a number, for a chart; None unless there is exactly one."""
        value = self.settings[0][1] if len(self.settings) == 1 else None
        return float(value) if isinstance(value, int | float) else None


#: Kinds that cost more than exact attention: tried only if they are named.
EXPENSIVE = ("talking",)


def available() -> dict[str, type[AttentionConfig]]:
    """Every attention that can replace softmax attention, by kind."""
    return {kind: cls for kind, cls in kinds(AttentionConfig).items() if cls is not SoftmaxConfig}  # type: ignore


#: The option that is varied for a kind, and its values for a context and a head width; other kinds use their defaults.
USUAL: dict[str, tuple[str, Callable[[int, int], Sequence[int]]]] = {
    "window": ("size", lambda context, width: doubling(context // 2)),
    "topk": ("k", lambda context, width: doubling(context // 8)),
    "performer": ("features", lambda context, width: doubling(width * 8)),
    "linformer": ("k", lambda context, width: doubling(context)),
    "lsh": ("rounds", lambda context, width: doubling(16)),
    "strided": ("size", lambda context, width: doubling(context // 4)),
    "dilated": ("size", lambda context, width: doubling(context // 4)),
    "longformer": ("size", lambda context, width: doubling(context // 4)),
    "bigbird": ("size", lambda context, width: doubling(context // 4)),
    "segments": ("memory", lambda context, width: doubling(context // 4)),
}
#: The kinds whose budgets are varied by default; the others are then tried with their defaults.
FIRST = ("window", "topk", "performer", "linformer", "lsh")


def doubling(most: int) -> list[int]:
    """Up to ``STEPS`` numbers, each twice the one before, ending with ``most``.

    >>> doubling(64), doubling(3)
    ([4, 8, 16, 32, 64], [1, 3])
    """
    sizes = [max(1, most)]
    while len(sizes) < STEPS and sizes[0] > 1:
        sizes.insert(0, sizes[0] // 2)
    return sizes


def trials(wanted: Iterable[str] | None, budgets: Iterable[str], context: int, head_width: int) -> list[Trial]:
    """The trials of the wanted kinds (None: all cheap ones), at the usual budgets or the given ones.

    ``budgets`` are strings such as "window=8,16,32" or, for another option than the usual one, "lsh.buckets=8,16";
    several options of a kind are combined.
    """
    known = available()
    chosen = [kind for kind in known if kind not in EXPENSIVE] if wanted is None else list(dict.fromkeys(wanted))
    for kind in chosen:
        _check_kind(kind, known)
    given = _given(budgets, known)
    for kind in given:
        if kind not in chosen:
            raise UserError(f"--budgets names {kind}, which is not tried; add it to --kinds")
    result = []
    for kind in chosen:
        varied: Mapping[str, Sequence[Any]] = given.get(kind, {})
        if not varied and kind in USUAL and (wanted is not None or kind in FIRST):
            name, values = USUAL[kind]
            varied = {name: values(context, head_width)}
        result += _of_kind(kind, varied)
    return result


def _of_kind(kind: str, varied: Mapping[str, Sequence[Any]]) -> list[Trial]:
    """Every combination of the values of the varied options."""
    trials = []
    for values in product(*varied.values()):
        plain = {name: _plain(value) for name, value in zip(varied, values, strict=True)}
        config: AttentionConfig = load(AttentionConfig, {"kind": kind, **plain}, source=f"--budgets {kind}")  # type: ignore
        try:
            config.check()
        except ValueError as error:
            raise UserError(f"--budgets {kind}: {error}") from error
        trials.append(Trial(kind, tuple(plain.items()), config))
    return trials


def _given(budgets: Iterable[str], known: dict[str, type[AttentionConfig]]) -> dict[str, dict[str, list[str]]]:
    options: dict[str, dict[str, list[str]]] = {}
    for text in budgets:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise UserError(f"--budgets takes KIND=8,16,32, not {text!r}; write for example window=8,16,32")
        kind, _, option = name.partition(".")
        _check_kind(kind, known)
        option = option or (USUAL[kind][0] if kind in USUAL else "")
        names = [field.name for field in fields(known[kind])]  # type: ignore[arg-type]
        if option not in names:
            have = ", ".join(f"{kind}.{one}" for one in names) or "none"
            raise UserError(f"--budgets {text}: the options of {kind} are {have}")
        options.setdefault(kind, {})[option] = values.split(",")
    return options


def _plain(value: Any) -> Any:
    """A string from the command line as a number if it is one."""
    if not isinstance(value, str):
        return value
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def _check_kind(kind: str, known: dict[str, type[AttentionConfig]]) -> None:
    if kind == SoftmaxConfig.kind:
        raise UserError("softmax is the reference for the others; leave it out of --kinds")
    if kind not in known:
        near = nearest(kind, known)
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
        raise UserError(f"there is no attention {kind!r}; {hint}")
