"""Why a model has no published form: the parts in the way, and options that give a model that can be exported."""

import re

import pytest

from regard.config import override
from regard.convert.family import family_of
from regard.errors import UserError
from regard.models import GPTConfig
from regard.recipes import get


def refusal(config) -> str:
    with pytest.raises(UserError) as refused:
        family_of(config)
    return str(refused.value)


@pytest.mark.parametrize("recipe", ["shakespeare", "shakespeare-small", "shakespeare-hybrid", "toy-copy", "chat"])
def test_the_options_of_a_refusal_give_a_model_that_can_be_exported(recipe: str):
    config = get(recipe).model
    text = refusal(config)
    assert "regard export RUN FILE.onnx" in text
    options = re.search(r"trained with (--.*) can be exported", text)
    assert options is not None
    words = options[1].replace("--model.", "--").split()
    assert family_of(override(config, words))[1]["model_type"] == "llama"
    for place in range(0, len(words), 2):  # each is needed
        refusal(override(config, words[:place] + words[place + 2 :]))


def test_a_refusal_names_the_parts_in_the_way():
    text = refusal(get("shakespeare").model)
    for part in ("model.ngrams = 3", "model.feedforward = relu2", "model.qk_norm = true", "model.cap = 15.0"):
        assert part in text
    assert "buckets" not in text  # the tables go with the n-grams


def test_the_nearest_type_is_the_one_with_the_fewest_changes():
    config = override(GPTConfig(), ["--bias", "true", "--qk_norm", "false", "--norm", "layer", "--position", "learned"])
    assert "the nearest, gpt2, are model.feedforward = relu2: a run that is trained with" in refusal(config)


def test_a_model_that_reads_images_is_not_promised_an_onnx_file():
    assert "onnx" not in refusal(get("karate").model)
