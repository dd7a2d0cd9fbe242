"""BERT, RoBERTa and DistilBERT against `transformers`, with every head: import, export and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import in_float64, randomized
from safetensors.torch import load_file, save_file

from regard.attention import Padded
from regard.convert.archive import pack, unpacked
from regard.convert.hub import read_hub, write_hub
from regard.errors import UserError
from regard.models import EncoderConfig
from regard.nn.heads import NoHeadConfig, TokenClassesHeadConfig

transformers = pytest.importorskip("transformers")

BERT = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"max_position_embeddings": 20}
DISTILBERT = {"vocab_size": 61, "dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 20}
FAMILIES = {"Bert": BERT, "Roberta": BERT | {"max_position_embeddings": 22}, "DistilBert": DISTILBERT}
HEADS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}}
LENGTHS = torch.tensor([17, 5, 1])


def oracle(name: str, head: str, fields: dict[str, Any]) -> Any:
    labels = LABELS if "Classification" in head else {}
    config = getattr(transformers, f"{name}Config")(**fields, **labels)
    config._attn_implementation = "eager"
    # Only the bare model has a pooler of no use; it is left out here and tested below.
    bare = {"add_pooling_layer": False} if head == "Model" and name != "DistilBert" else {}
    return getattr(transformers, name + head)(config, **bare)


def batch(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor], Padded, torch.Tensor | None]:
    """Tokens with padding, what `transformers` gets besides, our slots and our token types."""
    generator = torch.Generator().manual_seed(1)
    filled = torch.arange(17) < LENGTHS[:, None]
    tokens = torch.where(filled, torch.randint(2, 61, (3, 17), generator=generator), 1 if name == "Roberta" else 0)
    types = torch.randint(2, (3, 17), generator=generator) if name == "Bert" else None
    given = {"attention_mask": filled.long(), **({} if types is None else {"token_type_ids": types})}
    return tokens, given, Padded(LENGTHS, 17), types


def outputs(found: Any) -> torch.Tensor:
    """The result of any head in the form of ours."""
    if "start_logits" in found:
        return torch.stack((found.start_logits, found.end_logits), -1)
    return found.logits if "logits" in found else found.last_hidden_state


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference at real tokens, relative to the largest output."""
    if ours.ndim == 3:
        filled = torch.arange(17) < LENGTHS[:, None]
        ours, theirs = ours[filled], theirs[filled]
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_encoder_equals_transformers_and_comes_back(name: str, head: str, tmp_path: Path) -> None:
    fields = FAMILIES[name]
    theirs = randomized(oracle(name, head, fields))
    theirs.save_pretrained(tmp_path / "theirs")
    config, weights, certificate, *_ = read_hub(tmp_path / "theirs")
    model = config.build().eval()
    model.load_state_dict(weights)
    assert certificate.parameters == sum(weight.numel() for weight in theirs.parameters())
    assert not certificate.unused
    tokens, given, slots, types = batch(name)
    with torch.no_grad():
        expected = outputs(theirs(tokens, **given))
        assert gap(model(tokens, slots, types), expected) <= 1e-4
        exact = outputs(in_float64(lambda: oracle(name, head, fields), theirs)(tokens, **given))
        assert gap(model.double()(tokens, slots, types), exact) <= 1e-9
    write_hub(tmp_path / "ours", config, model.float(), None)
    auto = getattr(transformers, f"AutoModel{head.removeprefix('Model')}")
    bare = {"add_pooling_layer": False} if head == "Model" and name != "DistilBert" else {}
    again = auto.from_pretrained(tmp_path / "ours", attn_implementation="eager", **bare)
    first, second = theirs.float().state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    if "Classification" in head:
        assert again.config.id2label == LABELS["id2label"]
    with torch.no_grad():
        assert gap(outputs(again(tokens, **given)), expected) == 0


def saved(folder: Path, name: str = "Bert", head: str = "Model", **fields: Any) -> Any:
    """A random model in the hub's layout, with a pooler if its class has one."""
    model = randomized(getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**BERT, **fields)))
    model.save_pretrained(folder)
    return model


def test_the_pooler_of_a_bare_encoder_is_declared_unused(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    config, weights, certificate, *_ = read_hub(tmp_path)
    assert isinstance(config, EncoderConfig)
    assert isinstance(config.head, NoHeadConfig)
    assert certificate.unused == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert torch.equal(weights["embed.weight"], theirs.embeddings.word_embeddings.weight)


def test_names_of_the_first_checkpoints(tmp_path: Path) -> None:
    """`gamma` and `beta`, the head of next sentences, positions as a tensor, and a prefix before a bare encoder."""
    saved(tmp_path, head="ForPreTraining")
    _, wanted, *_ = read_hub(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in old.items()}
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    save_file(old, tmp_path / "model.safetensors")
    config, weights, certificate, *_ = read_hub(tmp_path)
    assert isinstance(config, EncoderConfig)
    assert config.head.predicts_tokens
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert "cls.seq_relationship.weight" in certificate.unused
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": ["BertModel"]}))
    with pytest.raises(UserError, match=r"has the tensor cls\.predictions"):
        read_hub(tmp_path)
    save_file({name: tensor for name, tensor in old.items() if "cls" not in name}, tmp_path / "model.safetensors")
    _, weights, *_ = read_hub(tmp_path)
    assert all(torch.equal(weights[name], wanted[name]) for name in weights)


def test_a_weight_under_two_names_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.LayerNorm.gamma"] = tensors["embeddings.LayerNorm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="are the same weight"):
        read_hub(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["BertForMultipleChoice"]}, "architecture BertForMultipleChoice cannot be imported"),
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel cannot be imported"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"type_vocab_size": 0}, "token_types must be at least 1"),
        ({"mask_token_id": 61}, "mask_token is 61, but the ids end at 60"),
        ({"architectures": ["BertForTokenClassification"], "id2label": {"0": "a", "7": "b"}}, "id2label does not name"),
        ({"architectures": ["BertForQuestionAnswering"], "num_labels": 3}, "spans have 2 outputs"),
    ],
)
def test_what_cannot_be_imported_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    with pytest.raises(UserError, match=message):
        read_hub(tmp_path)


def test_an_encoder_without_a_published_form_is_refused(tmp_path: Path) -> None:
    config = EncoderConfig(width=16, heads=2, layers=1, head=TokenClassesHeadConfig(3))
    with pytest.raises(UserError, match="no family of published models has the parts of this encoder"):
        write_hub(tmp_path / "out", config, config.build(), None)


def test_the_mask_token_is_that_of_the_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path, head="ForMaskedLM")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 7, "content": "[MASK]"}]}))
    config, *_ = read_hub(tmp_path)
    assert isinstance(config, EncoderConfig)
    assert config.mask_token == 7
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    assert read_hub(tmp_path).config.build().mask_token == 60


def test_a_safetensors_file_of_another_name_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.fp16.safetensors")
    assert read_hub(tmp_path).certificate.parameters


def test_a_folder_as_one_tar_file(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    files = {f"some/folder/{path.name}": path.read_bytes() for path in sorted((tmp_path / "theirs").iterdir())}
    (tmp_path / "one.tar").write_bytes(pack({**files, "../outside.py": b"raise SystemExit"}))
    assert pack(files) == pack(files)
    with unpacked(tmp_path / "one.tar") as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
        _, weights, *_ = read_hub(folder)
    assert len(weights) == len(read_hub(tmp_path / "theirs").weights)
    (tmp_path / "one.tar").write_bytes((tmp_path / "one.tar").read_bytes()[:3000])
    with pytest.raises(UserError, match="no whole"), unpacked(tmp_path / "one.tar"):
        pass
