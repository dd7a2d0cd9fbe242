"""The attentions that are tried, and their budgets: every registered kind, each over a range of one of its options.

A budget is the option that determines the cost: window size, random features, rank, rounds of hashing, number of keys.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from regard.attention import AttentionConfig, SoftmaxConfig
from regard.config import hint, kinds, load, notation
from regard.config.table import table_of
from regard.errors import UserError

#: The default number of budgets of a kind, each twice the one before.
STEPS = 5


@dataclass(frozen=True)
class Candidate:
    """One attention at one budget."""

    kind: str
    settings: tuple[tuple[str, object], ...]  # the options that are set
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


#: Kinds that cost more than softmax attention: tried only if they are named.
EXPENSIVE = ("talking",)


def available() -> dict[str, type[AttentionConfig]]:
    """Every attention that can replace softmax attention, by kind."""
    known = kinds(AttentionConfig).items()
    return {kind: cls for kind, cls in known if cls is not SoftmaxConfig and cls.layer is AttentionConfig.layer}


def largest_budgets(context: int, head_width: int) -> dict[str, tuple[str, int]]:
    """The option that is varied for a kind, and its largest value; other kinds use their defaults."""
    return {
        "window": ("size", context // 2),
        "topk": ("k", context // 8),
        "performer": ("features", head_width * 8),
        "linformer": ("k", context),
        "lsh": ("rounds", 16),
        **dict.fromkeys(("strided", "dilated", "longformer", "bigbird"), ("size", context // 4)),
        "segments": ("memory", context // 4),
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


def trials(wanted: Iterable[str] | None, budgets: Iterable[str], context: int, head_width: int) -> list[Candidate]:
    """The trials of the wanted kinds (None: all cheap ones), at the usual budgets or the given ones.

    ``budgets`` are strings such as "window=8,16,32" or, for another option than the usual one, "lsh.buckets=8,16";
    several options of a kind are combined.
    """
    known, largest = available(), largest_budgets(context, head_width)
    chosen = [kind for kind in known if kind not in EXPENSIVE] if wanted is None else list(dict.fromkeys(wanted))
    for kind in chosen:
        _check_kind(kind, known)
    varied: dict[str, dict[str, Sequence[object]]] = {}
    for text in budgets:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise UserError(f"--budgets takes KIND=8,16,32, not {text!r}; write for example window=8,16,32")
        kind, _, option = name.partition(".")
        _check_kind(kind, known)
        if kind not in chosen:
            raise UserError(f"--budgets names {kind}, which is not tried; add it to --kinds")
        option = option or largest.get(kind, ("",))[0]
        names = list(table_of(known[kind]).fields)
        if option not in names:
            have = ", ".join(f"{kind}.{one}" for one in names) or "none"
            raise UserError(f"--budgets {text}: the options of {kind} are {have}")
        varied.setdefault(kind, {})[option] = [_plain(value) for value in values.split(",")]
    for kind, (option, most) in largest.items():
        if kind in chosen and (wanted is not None or kind in FIRST):
            varied.setdefault(kind, {option: doubling(most)})
    return [trial for kind in chosen for trial in _of_kind(kind, varied.get(kind, {}))]


def _of_kind(kind: str, varied: Mapping[str, Sequence[object]]) -> list[Candidate]:
    """Every combination of the values of the varied options."""
    trials = []
    for values in product(*varied.values()):
        settings = dict(zip(varied, values, strict=True))
        config = load(AttentionConfig, {"kind": kind, **settings}, source=f"--budgets {kind}")
        trials.append(Candidate(kind, tuple(settings.items()), config))
    return trials


def _plain(text: str) -> object:
    """The number or Boolean that a text spells, or the text."""
    try:
        return notation.parse(text)
    except ValueError:
        return text


def _check_kind(kind: str, known: Mapping[str, type[AttentionConfig]]) -> None:
    if kind == SoftmaxConfig.kind:
        raise UserError("softmax is the reference for the others; leave it out of --kinds")
    if kind not in known:
        raise UserError(f"there is no attention {kind!r}; {hint(kind, list(known))}")
