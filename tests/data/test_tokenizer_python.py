"""Python's own tokens, sliced out of the text; code that does not parse costs only its block."""

import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from tokenizer_kit import CODE, any_text

from regard.data import PythonConfig
from regard.data.tokenizers.python import Python, cut_blocks, split_python


def test_the_tokens_are_pythons():
    found = "·".join(split_python("def area(x=0x1F):  # of it\r\n\tif x != 'a b':\n        return x ** 2\n"))
    assert found == (
        "def· ·area·(·x·=·0x1F·)·:·  ·#· of· it·\r\n·\t·if· ·x· ·!=· ·'·a· b·'·:·\n·        ·return· ·x· ·**· ·2·\n"
    )


def test_an_f_string_is_a_string():
    assert list(split_python("x = f'{a!r:>{w}} is' + b\n"))[-6:] == ["'", " ", "+", " ", "b", "\n"]
    assert "".join(split_python("x = f'{a!r:>{w}} is' + b\n")) == "x = f'{a!r:>{w}} is' + b\n"


@given(any_text)
def test_the_slices_are_the_text(text):
    found = list(split_python(text))
    assert "".join(found) == text
    assert all(found)


def test_on_real_files():
    """All text comes back, and what `tokenize` finds is a slice, but for strings with two empty lines in them."""
    tokenizer = PythonConfig(vocabulary=2000).build([CODE])
    names = missed = 0
    for path in sorted(Path(tokenize.__file__).parent.glob("*.py"))[:40]:
        text = path.read_text(encoding="utf-8")
        assert tokenizer.decode(tokenizer.encode(text)) == text
        slices = set(split_python(text))
        with open(path, encoding="utf-8") as file:
            found = {token.string for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.NAME}
        names, missed = names + len(found), missed + len(found - slices)
    assert names > 3000
    assert missed < names / 100


BROKEN = [
    "x = 'never closed\n",
    "def f(:\n  (\n",
    'x = """never closed\n',
    "if x:\n        a\n    b\n",
    "$ ls\n",
    "!ls\n",
    "\0\n",
]


@pytest.mark.parametrize("broken", BROKEN)
def test_code_that_does_not_parse_costs_only_its_block(broken):
    good = "def one():\n    return 1\n\n\n"
    broken += "\n\n"
    parts = [list(split_python(part)) for part in (good, broken, good)]
    assert list(split_python(good + broken + good)) == parts[0] + parts[1] + parts[2]
    assert parts[0] == ["def", " ", "one", "(", ")", ":", "\n", "    ", "return", " ", "1", "\n\n\n"]
    assert "".join(parts[1]) == broken


def test_python_goes_as_far_as_it_can_and_words_take_the_rest():
    assert list(split_python("x  =  one $ to be\ny=2\n")) == [
        "x",
        "  ",
        "=",
        "  ",
        "one",
        " $",
        " to",
        " be",
        "\n",
        "y",
        "=",
        "2",
        "\n",
    ]


def test_blocks_end_between_functions():
    assert cut_blocks("a = 1\n\n\nb = 2\n") == len("a = 1\n\n\n")
    assert cut_blocks("a = 1\r\n\r\n\r\nb = 2\r\n") == len("a = 1\r\n\r\n\r\n")
    assert cut_blocks("a = 1\n\n\n") == cut_blocks("a = 1\n\n\n  b") == cut_blocks("a = 1\n\nb") == 0


def test_frequent_tokens_are_one_number_and_others_are_spelled():
    tokenizer = PythonConfig(vocabulary=270).build(["for name in names:\n    print(name)\n\n\n" * 5])
    assert {b"name", b"names", b"for", b"in", b"print", b"    ", b"\n\n\n"} == set(tokenizer.tokens[256:])
    assert len(tokenizer.encode("for name in names:")) == 8
    assert tokenizer.encode("nam é").tolist() == list("nam é".encode())


def test_the_vocabulary_goes_to_the_most_frequent():
    tokenizer = PythonConfig(vocabulary=258).build(["aa = bb = aa = cc = bb = cc\n\n\ncc = dd\n"])
    assert tokenizer.tokens[256:] == (b"cc", b"aa")  # as frequent as bb, and before it


def test_keywords_of_code_are_learned():
    text = Path(__file__).read_text(encoding="utf-8") * 2
    tokenizer = PythonConfig().build([text])
    assert {b"def", b"return", b"assert", b"for"} <= set(tokenizer.tokens)
    assert len(tokenizer.encode(text)) < len(text) / 2


def test_a_token_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(UnicodeDecodeError):
        Python([b"\xff\xfe"])
