"""`regard plan` has the vocabulary that training gives the model, or says which one it assumes."""

from pathlib import Path

import pytest

from regard.commands.plan import with_vocabulary
from regard.data.sources import find_source
from regard.recipes import recipe


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (["--data.tokenizer", "bytes"], 256),
        (["--data.tokenizer", "bpe", "--data.tokenizer.vocabulary", "700"], 700),
        (["--data.tokenizer", "bytes", "--model.vocabulary", "300"], 300),
        (["--data.tokenizer", "bytes", "--model", "gpt2"], 50_257),
    ],
)
def test_the_vocabulary_is_that_of_the_tokenizer_unless_it_is_given(options: list[str], size: int):
    experiment, assumed = with_vocabulary(recipe("shakespeare", *options))
    assert experiment.model.vocabulary == size
    assert assumed == []


def test_a_text_that_was_not_read_has_an_assumed_vocabulary(tmp_path: Path):
    experiment, (line,) = with_vocabulary(recipe("shakespeare", "--data.path", str(tmp_path / "text.txt")))
    assert f"a vocabulary of {experiment.model.vocabulary} is assumed" in line
    assert "--model.vocabulary" in line


def test_a_source_in_the_cache_is_read():
    if find_source("plays").cached() is None:
        pytest.skip("regard data get plays")
    experiment, assumed = with_vocabulary(recipe("shakespeare"))
    assert experiment.model.vocabulary == experiment.data.build(experiment.model.context).vocabulary != 65
    assert assumed == []
