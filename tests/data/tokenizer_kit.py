"""Texts that are hard on a tokenizer, and one small tokenizer of every kind."""

from hypothesis import strategies as st

from regard.data import BpeConfig, BytesConfig, CharactersConfig, PythonConfig, WordsConfig

CODE = '''\
"""A module; it has a docstring,

with an empty line."""

import os  # the system


def area(width, height=2.5, *, name="né — 😀"):
    if not (width and
            height):
        return None
\tx = f"{width!r:>{height}} {'in' + name}"
    return width * height ** 2


class Area:
    text = r"""raw \\ text
  on two lines"""

    def __call__(self, width): return area(width) if width else \\
        lambda: self.text


'''
PROSE = (
    "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer 12 or 345 slings?\r\n\n" * 3
)
CORPUS = [PROSE, CODE, CODE]

LEARNED = [WordsConfig(vocabulary=300), BpeConfig(vocabulary=320), PythonConfig(vocabulary=300)]
BYTE_BASED = [BytesConfig(), *LEARNED]

WHITE = [" ", "  ", "\n", "\n\n\n", "\r\n", "\r", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u3000", "    "]
SIGNS = ["'", "'s", '"', '"""', "f'", "#", "_", "\\", "\\\n", "(", "]", "!", "$", "?", "<|end|>", "—", "\ufeff", "\0"]
SPELT = [
    "a",
    "be",
    " be",
    "def ",
    "if x:\n",
    "0777",
    "1_",
    "12",
    "²",
    "½",
    "Ⅷ",
    "٣",
    "é",
    "e\u0301",
    "語",
    "😀",
    "👩\u200d👧",
]

#: Every character a file can hold; what splits, joins and is easily lost; and code.
any_character = st.characters(codec="utf-8")
hard_pieces = st.sampled_from([*WHITE, *SIGNS, *SPELT])
any_text = st.one_of(
    st.text(any_character, max_size=60),
    st.lists(hard_pieces | any_character, max_size=40).map("".join),
    st.lists(hard_pieces | st.sampled_from(CODE.splitlines(keepends=True)), max_size=20).map("".join),
)


@st.composite
def texts_in_pieces(draw):
    """A text and the same text cut anywhere."""
    text = draw(any_text)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return text, [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def corpus_for(config, *more):
    """A corpus; one that holds these texts too where the tokenizer takes only the characters of its corpus."""
    return [*CORPUS, *more] if isinstance(config, CharactersConfig) else CORPUS
