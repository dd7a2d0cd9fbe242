"""The encoder-only Transformer and masked language modeling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.attention import Packed, Padded
from regard.config import dump, load
from regard.data import TextBatch
from regard.errors import UserError
from regard.models import EncoderConfig, ModelConfig
from regard.nn.heads import (
    BertTokensHeadConfig,
    ClassesHeadConfig,
    HeadConfig,
    NoHeadConfig,
    SpansHeadConfig,
    TokenClassesHeadConfig,
    TokensHeadConfig,
    sentence_vectors,
)
from regard.nn.positions.position import LearnedPositionConfig
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


HEADS = {
    "tokens": (TokensHeadConfig(), (3, 40, 29)),
    "bert-tokens": (BertTokensHeadConfig(), (3, 40, 29)),
    "classes": (ClassesHeadConfig(4, dense="tanh"), (3, 4)),
    "mean": (ClassesHeadConfig(4, pool="mean"), (3, 4)),
    "token-classes": (TokenClassesHeadConfig(3, ("a", "b", "c")), (3, 40, 3)),
    "spans": (SpansHeadConfig(), (3, 40, 2)),
    "none": (NoHeadConfig(), (3, 40, 16)),
}


@pytest.mark.parametrize(("head", "shape"), HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mask_token", [None, 4])
def test_heads(head: HeadConfig, shape: tuple[int, ...], mask_token: int | None) -> None:
    config = replace(SMALL, head=head, mask_token=mask_token)
    assert load(ModelConfig, dump(config), "config.toml") == config
    model = config.build()
    outputs = model(TOKENS)
    assert outputs.shape == shape
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.predicts_tokens == ("tokens" in head.kind)
    assert model.mask_token == (29 if mask_token is None else 4)
    if model.predicts_tokens:
        assert model.unembed.weight is model.embed.weight


def test_tokens_of_another_type_differ_and_the_default_is_type_0() -> None:
    model = replace(SMALL, token_types=2, embedding_norm=True).build().eval()
    types = torch.zeros_like(TOKENS)
    assert torch.equal(model(TOKENS), model(TOKENS, None, types))
    assert (model(TOKENS) != model(TOKENS, None, types + 1)).any(-1).all()
    with pytest.raises(UserError, match="this encoder has no token types"):
        SMALL.build()(TOKENS, None, types)


def test_positions_start_at_the_offset() -> None:
    model = replace(SMALL, position=LearnedPositionConfig(offset=2)).build()
    table = model.get_parameter("position.table.weight")
    assert table.shape == (66, 16)
    model(TOKENS).sum().backward()
    assert table.grad is not None
    used = table.grad.abs().sum(1) > 0
    assert used.tolist() == [False] * 2 + [True] * 40 + [False] * 24


def test_sentence_vectors_have_length_1_and_ignore_padding() -> None:
    model = replace(SMALL, head=NoHeadConfig()).build().eval()
    slots = Padded(torch.tensor([40, 7, 1]), 40)
    found = sentence_vectors(model(TOKENS, slots), slots.filled())
    alone = sentence_vectors(model(TOKENS[1:2, :7]))
    torch.testing.assert_close(found[1:2], alone)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 2, "head": SpansHeadConfig()}, "classes and a head"),
        ({"mask_token": 29}, "mask_token is 29"),
        ({"token_types": 0}, "token_types must be at least 1"),
        ({"head": ClassesHeadConfig(0)}, "classes must be at least 1"),
        ({"head": ClassesHeadConfig(3, ("a",))}, "1 labels were given for 3 classes"),
    ],
)
def test_impossible_encoders(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SMALL, **change).build()


def test_an_encoder_that_predicts_no_tokens_is_not_trained_on_masked_ones() -> None:
    model = replace(SMALL, head=SpansHeadConfig()).build()
    with pytest.raises(UserError, match="with this head predicts no tokens"):
        MaskedTokens().terms(model, TextBatch(TOKENS, TOKENS))


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


def test_whole_words_are_masked_together_and_counted_alike():
    model, task = SMALL.build().eval(), MaskedTokens(MaskedTokensConfig(share=0.3, whole_words=True))
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(SMALL.vocabulary, (6, 40), generator=generator)
    words = torch.randint(2, (6, 40), generator=generator).cumsum(1)
    batch = TextBatch(tokens, tokens, words=words)
    inputs, term = seen_by(model, task, batch)
    assert int(term.count) == int(task.counts(batch)["masked_token"])
    order = task._order(batch)
    numbers = task._numbers(batch, order)
    assert int(numbers.sum()) == int(term.count)
    for row in range(6):
        chosen = order[row, : numbers[row]].tolist()
        assert len(chosen) <= 12
        changed = (inputs[row] != tokens[row]).nonzero().flatten().tolist()
        assert set(changed) <= set(chosen)
        own = {int(words[row, place]) for place in chosen}
        whole = [place for place in range(40) if int(words[row, place]) in own]
        assert sorted(chosen) == whole or len(own) == 1  # a word longer than the share is cut
    with pytest.raises(UserError, match=r"--data\.words true"):
        task.counts(TextBatch(tokens, tokens))
