"""The oracle: MarianMT of `transformers`, an independent Transformer, gives the same logits from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.convert.marian import from_marian
from regard.errors import UserError

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "activation_function": "swish",
    "scale_embedding": True,
    "max_position_embeddings": 40,
    "pad_token_id": 60,
    "eos_token_id": 0,
    "decoder_start_token_id": 60,
    "forced_eos_token_id": 0,
}


def theirs(seed: int = 0, **change: Any) -> Any:
    """A MarianMT whose every weight is random, gains, biases and the logits' bias included."""
    torch.manual_seed(seed)
    model = transformers.MarianMTModel(transformers.MarianConfig(**(SMALL | change))).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), ("bias", model.final_logits_bias)]:
            if "embed_positions" not in name:
                around = 1.0 if "layer_norm.weight" in name else 0.0
                tensor.copy_(around + 0.3 * torch.randn_like(tensor))
    return model


def sentences(rows: int = 4, length: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Sources with their lengths, and targets."""
    g = torch.Generator().manual_seed(1)
    lengths = torch.tensor([length, 1, 4, length - 1])[:rows]
    source = torch.randint(0, 60, (rows, length), generator=g)
    source[torch.arange(length) >= lengths[:, None]] = 60
    return source, lengths, torch.randint(0, 60, (rows, 7), generator=g)


def logits_of(model: Any, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
    seen = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        return model(input_ids=source, attention_mask=seen, decoder_input_ids=inputs).logits


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation_function": "gelu"},
        {"activation_function": "relu", "scale_embedding": False},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61, "tie_word_embeddings": False},
        {"encoder_layers": 1, "decoder_layers": 4, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    ],
    ids=str,
)
def test_the_same_weights_give_the_same_logits(change: dict[str, Any]) -> None:
    other = theirs(**change)
    ours = from_marian(other)
    source, lengths, inputs = sentences()
    want = logits_of(other, source, lengths, inputs)
    got = ours(inputs, source, lengths).detach()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_step_by_step_too() -> None:
    other = theirs()
    ours = from_marian(other)
    source, lengths, inputs = sentences()
    want = logits_of(other, source, lengths, inputs)
    state = ours.start(4, 7, source=source, source_lengths=lengths)
    for t in range(7):
        logits, state = ours.step(inputs[:, t : t + 1], state)
        torch.testing.assert_close(logits[:, 0], want[:, t], rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_greedy_translations_are_the_same() -> None:
    other = theirs(3)
    ours = from_marian(other)
    source, lengths, _ = sentences()
    seen = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    want = other.generate(
        input_ids=source, attention_mask=seen, max_new_tokens=8, num_beams=1, do_sample=False, forced_eos_token_id=None
    )
    state, token, written = ours.start(4, 8, source=source, source_lengths=lengths), torch.full((4, 1), 60), []
    for _ in range(want.shape[1] - 1):
        logits, state = ours.step(token, state)
        token = logits[:, -1:].argmax(-1)
        written.append(token)
    for mine, row in zip(torch.cat(written, dim=1).tolist(), want[:, 1:].tolist(), strict=True):
        end = row.index(0) + 1 if 0 in row else len(row)
        assert mine[:end] == row[:end]


def test_every_weight_is_taken() -> None:
    """Each weight of theirs, changed, changes ours: nothing is left at its start or taken twice."""
    other = theirs()
    source, lengths, inputs = sentences()
    before = from_marian(other)(inputs, source, lengths).detach()
    for name, tensor in [*other.named_parameters(), ("final_logits_bias", other.final_logits_bias)]:
        if "embed" in name or "shared" in name or name.endswith("k_proj.bias"):  # softmax does not see a key's bias
            continue
        kept = tensor.data.clone()
        tensor.data.add_(0.5 * torch.randn_like(tensor))
        assert not torch.allclose(from_marian(other)(inputs, source, lengths), before, atol=1e-3), name
        tensor.data.copy_(kept)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decoder_ffn_dim": 64}, "encoder_ffn_dim 80 and decoder_ffn_dim 64"),
        ({"decoder_attention_heads": 2}, "encoder_attention_heads 4 and decoder_attention_heads 2"),
        ({"activation_function": "gelu_new"}, "the activation 'gelu_new'"),
    ],
)
def test_what_cannot_be_converted_says_so(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        from_marian(theirs(**change))
