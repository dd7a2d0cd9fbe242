"""Problems with known answers: a prompt and its answer, drawn at any size.

Each tests one ability of an architecture: to find a token by its content or by its place, to sort, to nest, to count. A
function with `problem` is one more; ``size`` is the number of symbols that matter.
"""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

LETTERS = ascii_lowercase + ascii_uppercase
BRACKETS = {"(": ")", "[": "]", "{": "}"}
SEPARATOR, END = ">", "\n"
#: Every character that a problem may have.
ALPHABET = LETTERS + digits + "()[]{}.#?" + SEPARATOR + END

Draw = Callable[[Random, int], tuple[str, str]]


class Problem(NamedTuple):
    """A kind of problem."""

    about: str
    draw: Draw


PROBLEMS: dict[str, Problem] = {}


def problem(name: str, about: str) -> Callable[[Draw], Draw]:
    """Register a function that draws a prompt and its answer."""

    def register(draw: Draw) -> Draw:
        PROBLEMS[name] = Problem(about, draw)
        return draw

    return register


def _letters(draw: Random, size: int) -> str:
    return "".join(draw.choices(ascii_lowercase, k=size))


@problem("copy", "the same letters again")
def copy(draw: Random, size: int) -> tuple[str, str]:
    text = _letters(draw, size)
    return text, text


@problem("reverse", "the letters in reverse order")
def reverse(draw: Random, size: int) -> tuple[str, str]:
    text = _letters(draw, size)
    return text, text[::-1]


@problem("sort", "the letters in the order of the alphabet")
def sort(draw: Random, size: int) -> tuple[str, str]:
    text = _letters(draw, size)
    return text, "".join(sorted(text))


@problem("selective-copy", "the letters without the dots between them (Gu & Dao 2023, sec. 3.1)")
def selective_copy(draw: Random, size: int) -> tuple[str, str]:
    text = _letters(draw, size)
    places = set(draw.sample(range(2 * size), size))
    rest = iter(text)
    return "".join(next(rest) if place in places else "." for place in range(2 * size)), text


@problem("recall", "the digit after a letter, of as many pairs (associative recall: Graves et al. 2014)")
def recall(draw: Random, size: int) -> tuple[str, str]:
    pairs = {letter: draw.choice(digits) for letter in draw.sample(LETTERS, min(size, len(LETTERS)))}
    asked = draw.choice(list(pairs))
    return "".join(f"{letter}{value}" for letter, value in pairs.items()) + f"?{asked}", pairs[asked]


@problem("induction", "the letter that followed the last one before (Olsson et al. 2022)")
def induction(draw: Random, size: int) -> tuple[str, str]:
    asked = draw.choice(ascii_uppercase)
    text, place = list(_letters(draw, size)), draw.randrange(max(1, size - 1))
    text[place] = asked
    return "".join(text) + asked, (*text, asked)[place + 1]


@problem("nesting", "the value of nested maxima M, minima m and sums modulo ten s (ListOps: Nangia & Bowman 2018)")
def nesting(draw: Random, size: int) -> tuple[str, str]:
    text, value = _expression(draw, size)
    return text, str(value)


def _expression(draw: Random, size: int) -> tuple[str, int]:
    """An expression of so many digits, and its value."""
    if size <= 1:
        digit = draw.randrange(10)
        return str(digit), digit
    count = draw.randint(2, min(4, size))
    cuts = [0, *sorted(draw.sample(range(1, size), count - 1)), size]
    texts, values = zip(*(_expression(draw, b - a) for a, b in pairwise(cuts)), strict=True)
    name, function = draw.choice([("M", max), ("m", min), ("s", lambda numbers: sum(numbers) % 10)])
    return f"[{name}{''.join(texts)}]", function(values)


@problem("agreement", "whether the first noun is singular (i: is) or plural (a: are), behind other nouns")
def agreement(draw: Random, size: int) -> tuple[str, str]:
    subject = draw.choice("SP")
    return subject + "".join(draw.choices("sp.", k=size)), {"S": "i", "P": "a"}[subject]


@problem("brackets", "what closes the open brackets (Dyck language)")
def brackets(draw: Random, size: int) -> tuple[str, str]:
    text, still = "", list[str]()
    for _ in range(size):
        if still and draw.random() < 0.5:
            text += BRACKETS[still.pop()]
        else:
            still.append(draw.choice(list(BRACKETS)))
            text += still[-1]
    return text, "".join(BRACKETS[one] for one in reversed(still))


@problem("needle", "the digit behind the # in many letters (a needle in a haystack)")
def needle(draw: Random, size: int) -> tuple[str, str]:
    place, value = draw.randint(0, size), draw.choice(digits)
    text = _letters(draw, size)
    return f"{text[:place]}#{value}{text[place:]}", value


@problem("parity", "whether the number of ones is odd: a state of one bit, and a limit of attention (Hahn 2020)")
def parity(draw: Random, size: int) -> tuple[str, str]:
    text = "".join(draw.choices("01", k=size))
    return text, str(text.count("1") % 2)
