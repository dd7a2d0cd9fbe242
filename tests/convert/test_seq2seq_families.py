"""The encoder-decoder families against `transformers`: import, padding, decoding, export and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import in_float64, randomized
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.convert.hub import read_hub, write_hub
from regard.errors import UserError
from regard.models import Transformer

transformers = pytest.importorskip("transformers")

IDS = {"pad_token_id": 60, "eos_token_id": 0, "decoder_start_token_id": 60, "forced_eos_token_id": None}
SIZES = {"vocab_size": 61, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4}
SIZES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 20}
T5 = {"vocab_size": 61, "d_model": 26, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 5, "d_ff": 40}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
TWO = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61, "vocab_size": 71}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", T5),
    "t5 1.1": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 with an untied head": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("Bart", SIZES),
    "bart with relu and scaled embeddings": ("Bart", SIZES | {"activation_function": "relu", "scale_embedding": True}),
    "mbart": ("MBart", SIZES),
    "marian": ("Marian", SIZES | {"activation_function": "swish", "scale_embedding": True}),
    "marian with two vocabularies": ("Marian", SIZES | TWO),
    "marian with two vocabularies and an untied head": ("Marian", SIZES | TWO | {"tie_word_embeddings": False}),
}


def oracle(case: str) -> Any:
    name, fields = MODELS[case]
    config = getattr(transformers, f"{name}Config")(**IDS | fields)
    config._attn_implementation = "eager"  # kernels in float32 only otherwise
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    if "untied" in case:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    return model


@torch.no_grad()
def built(case: str) -> Any:
    """The random model of a case, with a bias on the logits."""
    theirs: Any = randomized(oracle(case))
    if theirs.config.model_type == "marian":
        for stack in (theirs.model.encoder, theirs.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    for name, bias in theirs.named_buffers():
        if name == "final_logits_bias":
            bias.copy_(torch.randn(bias.shape, generator=generator(3)))
    return theirs


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentences() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources with their lengths and what `transformers` calls their attention mask, and targets."""
    lengths = torch.tensor([11, 1, 6])
    source = torch.randint(1, 60, (3, 11), generator=generator(4))
    seen = torch.arange(11) < lengths[:, None]
    return source.where(seen, 60), lengths, seen.long(), torch.randint(1, 60, (3, 9), generator=generator(5))


def ours_of(theirs: Any, folder: Path) -> tuple[Any, Transformer]:
    theirs.save_pretrained(folder)
    config, weights, certificate, *_ = read_hub(folder)
    model = config.build().eval()
    model.load_state_dict(weights)
    assert isinstance(model, Transformer)
    return certificate, model


@pytest.mark.parametrize("case", MODELS)
def test_a_model_equals_transformers_and_comes_back(case: str, tmp_path: Path) -> None:
    theirs = built(case)
    certificate, model = ours_of(theirs, tmp_path / "theirs")
    own = sum(weight.numel() for name, weight in theirs.named_parameters() if "embed_positions" not in name)
    tables = [weight.numel() for name, weight in theirs.named_parameters() if "embed_positions" in name]
    learned = sum(tables) if "marian" not in case else 0
    bias = 61 if "t5" not in case else 0  # a buffer in `transformers`
    assert certificate.parameters == own + learned + bias
    source, lengths, seen, targets = sentences()
    named = {"input_ids": source, "attention_mask": seen, "decoder_input_ids": targets}
    with torch.no_grad():
        assert gap(model(targets, source, lengths), theirs(**named).logits) <= 1e-4
        exact = in_float64(lambda: with_exact_positions(oracle(case)), theirs)
        assert gap(model.double()(targets, source, lengths), exact(**named).logits) <= 1e-9
    write_hub(tmp_path / "ours", model.config, model.float(), None)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    first, second = theirs.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    with torch.no_grad():
        assert gap(again(**named).logits, theirs(**named).logits) == 0


class ExactSinusoids(torch.nn.Embedding):
    """Marian's positions, which `transformers` rounds to float32."""

    def forward(self, shape: torch.Size, past: int = 0, position_ids: Tensor | None = None) -> Tensor:
        place = torch.arange(past, past + shape[1]) if position_ids is None else position_ids
        half = self.embedding_dim // 2
        angle = place[..., None].double() / 10_000 ** (torch.arange(half, dtype=torch.float64) / half)
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


def with_exact_positions(model: Any) -> Any:
    for stack in (model.model.encoder, model.model.decoder) if model.config.model_type == "marian" else ():
        stack.embed_positions = ExactSinusoids(*stack.embed_positions.weight.shape)
    return model


@pytest.mark.parametrize("case", ["t5", "t5 with an untied head", "bart", "mbart", "marian"])
@torch.no_grad()
def test_decoding_with_a_cache_equals_the_full_pass_and_generate(case: str, tmp_path: Path) -> None:
    theirs = built(case)
    _, model = ours_of(theirs, tmp_path)
    source, lengths, seen, targets = sentences()
    full = model(targets, source, lengths)
    state = model.start(3, 9, source=source, source_lengths=lengths)
    for t in range(9):
        logits, state = model.step(targets[:, t : t + 1], state)
        assert gap(logits[:, 0], full[:, t]) <= 1e-5
    limits = {"max_new_tokens": 12, "num_beams": 1, "do_sample": False, "eos_token_id": None, "pad_token_id": 60}
    want = theirs.generate(input_ids=source, attention_mask=seen, **limits)
    state, token, written = model.start(3, 12, source=source, source_lengths=lengths), want[:, :1], [want[:, :1]]
    for _ in range(12):
        logits, state = model.step(token, state)
        token = logits.argmax(-1)
        written.append(token)
    assert torch.equal(torch.cat(written, dim=1), want)


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


@pytest.mark.parametrize("case", ["t5", "bart", "marian"])
def test_a_file_without_the_head_and_with_another_name_of_the_embedding(case: str, tmp_path: Path) -> None:
    """Files of `T5Model` or `BartModel`; those that older programs wrote may name the shared embedding differently."""
    whole = built(case)
    (whole if case == "t5" else whole.model).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "final_logits_bias" not in tensors
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config, weights, *_ = read_hub(tmp_path)
    model = config.build().eval()
    model.load_state_dict(weights)
    source, lengths, seen, targets = sentences()
    bias = 0 if case == "t5" else whole.final_logits_bias
    with torch.no_grad():
        want = whole(input_ids=source, attention_mask=seen, decoder_input_ids=targets).logits - bias
        assert gap(model(targets, source, lengths), want) <= 1e-4


def test_fields_of_published_files_are_known(tmp_path: Path) -> None:
    """Those of `config.json` files that `transformers` itself does not write."""
    built("marian").save_pretrained(tmp_path)
    given = json.loads((tmp_path / "config.json").read_text())
    given |= {"_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "bad_words_ids": [[60]]}
    given |= {"classif_dropout": 0.1, "max_length": 512, "normalize_before": False, "normalize_embedding": False}
    given |= {"num_beams": 6, "static_position_embeddings": True, "num_hidden_layers": 6}
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert read_hub(tmp_path).certificate.family == "marian"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("Marian", {"decoder_ffn_dim": 64}, "encoder_ffn_dim is 40 and decoder_ffn_dim 64"),
        ("Bart", {"decoder_attention_heads": 2}, "encoder_attention_heads is 4 and decoder_attention_heads 2"),
        ("Marian", {"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ("T5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'gated-tanh'"),
    ],
)
def test_what_cannot_be_imported_says_so(name: str, change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    sizes = T5 if name == "T5" else SIZES
    getattr(transformers, f"{name}Config")(**IDS | sizes | change).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=problem):
        read_hub(tmp_path)
