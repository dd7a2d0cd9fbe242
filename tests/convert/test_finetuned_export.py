"""A published BERT, fine-tuned here and exported, gives the same outputs in `transformers`."""

import json
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.convert.family import family_of
from regard.data import load_tokenizer
from regard.errors import UserError
from regard.models import EncoderConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.norm import LayerNormConfig

pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "who", "?", "a", "b"]
TRAINING = ["--train.steps", "2", "--train.evaluate_every", "2", "--data.batch", "256", "--data.validation", "0.3"]


@pytest.fixture
def published(tmp_path):
    """A tiny BERT with random weights in the hub's layout."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    folder = tmp_path / "bert"
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # type: ignore[assignment]
    made.add_special_tokens(WORDS[:5])
    made.save(str(folder / "tokenizer.json"))
    return folder


def exported(tmp_path, published, recipe: str, lines: list[dict], *options: str):
    """A model trained for two steps, as `transformers` loads it, and its run."""
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    given = ["--data.path", str(path), "--init", str(published), "--runs", str(tmp_path), "--name", "tuned"]
    assert main(["train", recipe, *given, *TRAINING, *options]) == 0
    assert main(["export", str(tmp_path / "tuned"), str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json", lossless=False)
    return config, torch.from_numpy(tokenizer.encode("the cats sat"))[None]


def ours(tmp_path, tokens: torch.Tensor) -> torch.Tensor:
    from regard.generate.load import load

    with torch.no_grad():
        return load(tmp_path / "tuned").model(tokens)


def test_classes(tmp_path, published):
    from transformers import AutoModelForSequenceClassification

    lines = [{"text": "the cats sat" if n % 2 else f"a cat {'a ' * n}", "label": n % 2} for n in range(12)]
    config, tokens = exported(tmp_path, published, "sentiment", lines, "--task.pool", "cls")
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(model(tokens).logits.detach(), ours(tmp_path, tokens), rtol=1e-4, atol=1e-5)


def test_a_classifier_by_the_mean_is_refused_with_the_option_to_change():
    config = EncoderConfig(head=ClassesHeadConfig(pool="mean"), norm=LayerNormConfig())
    with pytest.raises(UserError, match=r"train it with --task\.pool cls"):
        family_of(config)


def test_tags(tmp_path, published):
    from transformers import AutoModelForTokenClassification

    lines = [{"words": ["the", "cats", *["a"] * n], "tags": ["D", "N", *["X"] * n]} for n in range(8)]
    config, tokens = exported(tmp_path, published, "tagging", lines)
    assert list(config["id2label"].values()) == ["D", "N", "X"]
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(model(tokens).logits.detach(), ours(tmp_path, tokens), rtol=1e-4, atol=1e-5)


def test_answers(tmp_path, published):
    from transformers import AutoModelForQuestionAnswering

    lines = [{"question": "who ?", "context": f"the cat {'a ' * n}sat", "answer": "cat"} for n in range(8)]
    _, tokens = exported(tmp_path, published, "questions", lines)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").eval()
    found, expected = model(tokens), ours(tmp_path, tokens)
    torch.testing.assert_close(found.start_logits.detach(), expected[..., 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.end_logits.detach(), expected[..., 1], rtol=1e-4, atol=1e-5)
    assert main(["predict", str(tmp_path / "tuned"), "the cat sat", "--question", "who ?"]) == 0
