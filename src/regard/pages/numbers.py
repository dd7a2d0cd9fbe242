"""Numbers, durations and lists in words."""

import math

_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_UNITS = ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float) -> str:
    """A number of things.

    >>> count(950), count(12_345), count(8_192_000)
    ('950', '12,345', '8.19 million')
    """
    for size, name in _LARGE:
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{round(value):,}"


def unit(value: float, name: str) -> str:
    """A quantity with its unit.

    >>> unit(9.61e12, "FLOP"), unit(12, "B")
    ('9.61 TFLOP', '12 B')
    """
    for size, prefix in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {prefix}{name}"
    return f"{value:.3g} {name}"


def short(value: float) -> str:
    """A number with two significant digits, as an option takes it.

    >>> short(0.02 / 3), short(5e-05)
    ('0.0067', '5e-05')
    """
    return f"{float(f'{value:.2g}'):g}"


def duration(seconds: float) -> str:
    """A length of time.

    >>> duration(0.0171), duration(0.42), duration(65), duration(7384)
    ('17.1 ms', '0.4 s', '1 min 5 s', '2 h 3 min')
    """
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "head"), plural(1200, "step")
    ('1 head', '1,200 steps')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def join_words(items: list[str]) -> str:
    """A list in a sentence.

    >>> join_words(["a"]), join_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def tick(value: float) -> str:
    """A number beside an axis.

    >>> tick(0.30000000000000004), tick(2500), tick(1e-05), tick(20000)
    ('0.3', '2,500', '1e-5', '20k')
    """
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    if size and size < 1e-3:
        exponent = math.floor(math.log10(size) + 1e-9)
        return f"{value / 10**exponent:.3g}e{exponent}"
    return f"{value:,.6g}"
