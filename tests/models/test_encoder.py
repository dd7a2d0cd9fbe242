"""The encoder-only Transformer and masked language modeling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.attention import Packed, Padded
from regard.data import TextBatch
from regard.errors import UserError
from regard.models import EncoderConfig
from regard.tasks import MaskedTokens, MaskedTokensConfig

SMALL = EncoderConfig(vocabulary=29, context=64, layers=2, heads=2, width=16, zero_init=False)
TOKENS = torch.randint(29, (3, 40), generator=torch.Generator().manual_seed(0))


def test_every_token_sees_the_whole_sequence() -> None:
    model = SMALL.build().eval()
    other = TOKENS.clone()
    other[:, -1] = (other[:, -1] + 1) % 29
    assert (model(TOKENS) != model(other)).any(-1).all()
    assert model(TOKENS).shape == (3, 40, 29)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_classes(pool) -> None:
    model = replace(SMALL, classes=5, pool=pool).build().eval()
    lengths = torch.tensor([40, 7, 1])
    logits = model(TOKENS, Padded(lengths, 40))
    assert logits.shape == (3, 5)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(logits[row], model(TOKENS[row : row + 1, :length])[0])
    features = model.features(TOKENS)
    pooled = features[:, 0] if pool == "cls" else features.mean(1)
    torch.testing.assert_close(model(TOKENS), model.head(pooled))
    with pytest.raises(UserError, match="a row of several documents has no single class"):
        model(TOKENS[:1], Packed.of([[30, 10]]))


def seen_by(model, task: MaskedTokens, batch: TextBatch):
    """The inputs that the model gets, and the terms."""
    given = []
    handle = model.embed.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    terms = task.terms(model, batch)
    handle.remove()
    return given[0], terms["masked_token"]


def test_masking_is_the_papers() -> None:
    """15 % of the tokens; of these 80 % masked, 10 % random, 10 % unchanged (Devlin et al. 2019, sec. 3.1)."""
    model = EncoderConfig(vocabulary=1000, context=512, layers=1, heads=1, width=8).build()
    tokens = torch.randint(1000, (64, 512), generator=torch.Generator().manual_seed(1))
    inputs, term = seen_by(model, MaskedTokens(), TextBatch(tokens, tokens))
    assert float(term.count) == 64 * round(0.15 * 512)
    masked = (inputs == model.mask_token).float().mean().item()
    changed = ((inputs != tokens) & (inputs != model.mask_token)).float().mean().item()
    assert masked == pytest.approx(0.12, abs=0.005)
    assert changed == pytest.approx(0.015, abs=0.003)


def test_the_choice_does_not_depend_on_the_batch_and_padding_is_never_chosen() -> None:
    model, task, lengths = SMALL.build().eval(), MaskedTokens(MaskedTokensConfig(share=0.3)), torch.tensor([40, 7, 1])
    inputs, term = seen_by(model, task, TextBatch(TOKENS, TOKENS, Padded(lengths, 40)))
    assert float(term.count) == float(task.counts(TextBatch(TOKENS, TOKENS, Padded(lengths, 40)))["masked_token"])
    assert float(term.count) == 12 + 2 + 1
    assert torch.equal(inputs[1, 7:], TOKENS[1, 7:])
    whole, _ = seen_by(model, task, TextBatch(TOKENS, TOKENS))
    alone, _ = seen_by(model, task, TextBatch(TOKENS[1:2], TOKENS[1:2]))
    assert torch.equal(whole[1:2], alone)


@torch.no_grad()
def test_only_chosen_tokens_count() -> None:
    model, task = SMALL.build().eval(), MaskedTokens()
    batch = TextBatch(TOKENS, TOKENS)
    inputs, term = seen_by(model, task, batch)
    logits = model(inputs).log_softmax(-1).gather(2, TOKENS[:, :, None])[:, :, 0]
    changed = inputs != TOKENS
    assert float(-logits[changed].sum()) <= float(term.total) + 1e-4
    assert changed.sum() <= int(term.count) == 3 * 6


def test_impossible_shares() -> None:
    with pytest.raises(ValueError, match="share must be above 0 and below 1"):
        MaskedTokensConfig(share=1.0).check()
