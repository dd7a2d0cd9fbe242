"""The encoder-decoder: what it refuses, how it starts, what its options do, and the paper's sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.config import load
from regard.errors import UserError
from regard.models import PRESETS, ModelConfig, Transformer, TransformerConfig, describe
from regard.nn.attention import SeparateConfig, SharedConfig
from regard.nn.blocks.block import PostNormConfig, PreNormConfig
from regard.nn.positions.position import LearnedPositionConfig, RotaryConfig, SinusoidalConfig
from regard.prove import ModelUnderTest
from regard.prove.claims.step import step

SMALL = TransformerConfig(vocabulary=11, context=16, layers=2, heads=2, width=8, dropout=0.0)


def sentences(rows: int = 2, length: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the target, the source and its lengths, as the model takes them."""
    g = torch.Generator().manual_seed(0)
    source = torch.randint(0, 11, (rows, 5), generator=g)
    return torch.randint(0, 11, (rows, length), generator=g), source, torch.tensor([5, 3] * rows)[:rows]


def count(config: TransformerConfig, part: str = "") -> int:
    return sum(p.numel() for name, p in config.build().named_parameters() if part in name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 10, "heads": 4}, "width 10 is not divisible by 4 heads; heads = 5 would do"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, not 0"),
        ({"source_vocabulary": 0}, "source_vocabulary must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be at least 0 and below 1, not -0.1"),
        ({"memory": "same", "decoder_layers": 3}, "there are 2 and 3 of them; set decoder_layers = 2"),
        ({"backend": "fast"}, "no backend 'fast'"),
        ({"position": SinusoidalConfig(mode="concatenate")}, "set tied = false"),
    ],
)
def test_impossible_configs(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()


def test_a_table_makes_it() -> None:
    config = load(ModelConfig, {"kind": "transformer", "memory": "same", "feedforward": "silu"})
    assert config == TransformerConfig(memory="same", feedforward=config.feedforward)  # pyright: ignore
    with pytest.raises(UserError, match="memory"):
        load(ModelConfig, {"kind": "transformer", "memory": "first"})


def test_features_and_head_make_the_forward_pass() -> None:
    model, batch = SMALL.build(), sentences()
    assert model(*batch).shape == (2, 6, 11)
    assert model.features(*batch).shape == (2, 6, 8)
    assert torch.equal(model.head(model.features(*batch)), model(*batch))


def test_the_papers_base_and_big() -> None:
    """Vaswani et al. 2017, table 3, says 65 and 213 million; with 37,000 pieces the arithmetic says this."""
    for name, width in (("transformer-base", 512), ("transformer-big", 1024)):
        attention = 4 * (width**2 + width)
        network = 2 * 4 * width**2 + 5 * width
        norm = 2 * width
        encoder = attention + network + 2 * norm
        decoder = 2 * attention + network + 3 * norm
        found = describe(PRESETS[name])
        assert found["parameters_in_blocks"] == 6 * (encoder + decoder)
        assert found["parameters"] == 6 * (encoder + decoder) + 37_000 * width
        assert found["parameters"] == pytest.approx({512: 65e6, 1024: 213e6}[width], rel=0.03)
        assert found["cache_elements_per_token"] == 6 * 4 * width  # keys and values, of the source and of the target


def test_what_is_tied() -> None:
    tied = SMALL.build()
    assert tied.unembed.weight is tied.embed.weight is tied.embed_source.weight
    two = replace(SMALL, source_vocabulary=7).build()
    assert two.unembed.weight is two.embed.weight
    assert two.embed_source.weight.shape == (7, 8)
    assert count(replace(SMALL, tied=False)) - count(SMALL) == 2 * 11 * 8
    assert count(replace(SMALL, head_bias=True)) - count(SMALL) == 11


def test_scaled_embeddings() -> None:
    plain = replace(SMALL, scaled=False, position=RotaryConfig()).build()
    scaled = Transformer(replace(plain.config, scaled=True))
    scaled.load_state_dict(plain.state_dict())
    seen: list[Tensor] = []
    for model in (plain, scaled):
        model.decoder[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model(*sentences())
    torch.testing.assert_close(seen[1], seen[0] * 8**0.5)


@pytest.mark.parametrize("block", [PreNormConfig(), PostNormConfig()])
def test_with_memory_same_layer_i_reads_layer_i(block: Any) -> None:
    """The gradient of decoder layer i's cross-attention reaches encoder layers up to i, and none above."""
    config = replace(SMALL, layers=3, memory="same", block=block)
    model: Any = config.build()
    inputs, source, lengths = sentences()
    memories = model.encode(source, lengths)
    weights = [layer.attention.qkv.weight for layer in model.blocks[:3]]
    for i, memory in enumerate(memories):
        read = model.blocks[3 + i].cross
        assert read is not None
        k, v = read.project(memory)
        found = torch.autograd.grad(k.square().sum() + v.sum(), weights, retain_graph=True, materialize_grads=True)
        assert [bool(g.abs().max() > 1e-9) for g in found] == [j <= i for j in range(3)]
    taken: list[Tensor] = []
    for block_ in model.blocks[3:]:
        block_.register_forward_pre_hook(lambda _, given: taken.append(given[1].cross.memory))
    model(inputs, source, lengths)
    assert all(torch.equal(one, two) for one, two in zip(taken, memories, strict=True))
    first, *others = replace(config, memory="last").build().encode(source, lengths)
    assert len(others) == 2
    assert all(other is first for other in others)


def test_every_weight_gets_a_gradient() -> None:
    for change in ({}, {"memory": "same"}, {"decoder_layers": 1}, {"projection": SharedConfig()}, {"bias": True}):
        model = replace(SMALL, block=PostNormConfig(), qk_norm=True, **change).build()
        model(*sentences()).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (change, name)


def test_one_projection_for_all() -> None:
    inside = [count(replace(SMALL, projection=kind), ".qkv.weight") for kind in (SeparateConfig(), SharedConfig())]
    assert inside == [4 * 3 * 64, 4 * 64 + 2 * 64]  # the shared kind of cross-attention has one matrix there too
    both = [count(replace(SMALL, projection=kind), ".cross.") for kind in (SeparateConfig(), SharedConfig())]
    assert both == [2 * 4 * 64, 2 * 2 * 64]


@pytest.mark.parametrize("block", [PreNormConfig(), PostNormConfig()])
def test_initial_weights(block: Any) -> None:
    config = TransformerConfig(vocabulary=500, width=64, heads=2, layers=8, decoder_layers=6, bias=True, block=block)
    model = config.build()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif name.endswith("gain"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            fans = 64 + (256 if "feedforward" in name else 64)  # a part's inputs and outputs, however many are stacked
            deviation = 64**-0.5 / 3 if "embed" in name else (2 / fans) ** 0.5
            if name.endswith(("out.weight", "down.weight")) and isinstance(block, PreNormConfig):
                deviation /= 4 if name.startswith("encoder") else 18**0.5
            assert parameter.std().item() == pytest.approx(deviation, rel=0.1), name
    logits = model.eval()(torch.randint(0, 500, (4, 9)), torch.randint(0, 500, (4, 9)), torch.tensor([9] * 4))
    assert logits.std().item() == pytest.approx(1 / 3, rel=0.2)


def test_zero_init_starts_every_block_as_the_identity() -> None:
    model, (inputs, *source) = replace(SMALL, zero_init=True).build(), sentences()
    phase = torch.arange(6)[None]
    embedded = model.position.embed(model.embed(inputs) * 8**0.5, phase)
    assert torch.equal(model.features(inputs, *source), model.norm(embedded))


def test_dropout_in_training_only() -> None:
    model = replace(SMALL, dropout=0.3).build()
    assert not torch.equal(model(*sentences()), model(*sentences()))
    model.eval()
    assert torch.equal(model(*sentences()), model(*sentences()))


def test_checkpointing_recomputes_and_changes_no_gradient() -> None:
    model = SMALL.build().train()
    runs: list[int] = []
    model.get_submodule("decoder.0.cross").register_forward_hook(lambda *_: runs.append(1))
    gradients = []
    for model.checkpointing in (False, True):
        model.zero_grad()
        runs.clear()
        model(*sentences()).square().sum().backward()
        assert len(runs) == 1 + model.checkpointing
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"memory": "same", "block": PostNormConfig(), "position": RotaryConfig()}])
def test_it_compiles_in_one_graph(change: dict[str, Any]) -> None:
    model, batch = replace(SMALL, **change).build(), sentences()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    want = model(*batch)
    torch.testing.assert_close(compiled(*batch), want, rtol=1e-4, atol=1e-5)
    for out in (want, compiled(*batch)):
        out.square().sum().backward()


# Decoding


def test_a_full_state_says_so() -> None:
    model, (inputs, source, lengths) = SMALL.build(), sentences()
    _, state = model.step(inputs, model.start(2, 8, source=source, source_lengths=lengths))
    with pytest.raises(UserError, match="the state holds 8 tokens, 6 are there and 3 more were given"):
        model.step(inputs[:, :3], state)


def test_learned_positions_end_at_the_context() -> None:
    model, (inputs, source, lengths) = replace(SMALL, position=LearnedPositionConfig()).build(), sentences(length=17)
    assert model(inputs[:, :16], source, lengths).shape == (2, 16, 11)
    with pytest.raises(UserError, match="a translation has 17 tokens, but the learned positions end at 16"):
        model(inputs, source, lengths)
    with pytest.raises(UserError, match="a source has 17 tokens"):
        model(inputs[:, :1], inputs, lengths)
    with pytest.raises(UserError, match="a translation has 17 tokens"):
        model.start(2, 17, source=source, source_lengths=lengths)


def test_a_batch_of_another_size_is_a_mistake() -> None:
    _, source, lengths = sentences()
    with pytest.raises(ValueError, match="2 sources were given for a batch of 3"):
        SMALL.build().start(3, 8, source=source, source_lengths=lengths)


def test_beams_share_what_was_made_of_the_source() -> None:
    """The memory is projected once, at the start, and no step copies it or leaves a graph."""
    model, (inputs, source, lengths) = SMALL.build(), sentences(rows=6)
    calls: list[int] = []
    model.get_submodule("decoder.0.cross.kv").register_forward_hook(lambda *_: calls.append(1))
    state = model.start(2, 40, source=source[:2], source_lengths=lengths[:2], beams=3)
    places = [x.data_ptr() for layer in state.shared.layers for x in layer]
    for piece in inputs.split([1, 2, 3], dim=1):
        logits, state = model.step(piece, state)
        assert not logits.requires_grad
    assert len(calls) == 1
    assert places == [x.data_ptr() for layer in state.shared.layers for x in layer]
    assert {x.shape[0] for layer in state.shared.layers for x in layer} == {2}
    assert {x.shape[0] for layer in state.own for x in layer} == {6}
    assert state.used == 6


def test_the_fast_path_of_training_does_not_forget_while_decoding() -> None:
    """Parts and sizes that training takes in one autograd step and whose decoder grows its KV cache."""
    model = TransformerConfig(vocabulary=11, width=64, layers=2, dropout=0.0).build()
    inputs, source, lengths = sentences(rows=30)
    state, got = model.start(30, 6, source=source, source_lengths=lengths), []
    for piece in inputs.split([3, 1, 2], dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    torch.testing.assert_close(torch.cat(got, dim=1), model(inputs, source, lengths), rtol=1e-4, atol=1e-4)


def test_buffers_grow_with_the_text_and_no_further() -> None:
    model, (_, source, lengths) = SMALL.build(), sentences()
    state = model.start(2, 38, source=source, source_lengths=lengths)
    sizes = []
    for _ in range(38):
        _, state = model.step(torch.zeros(2, 1, dtype=torch.long), state)
        sizes.append(state.own[0].k.shape[2])
    assert sizes == [min(38, 8 * (1 + i // 8)) for i in range(38)]


def test_masks_that_follow_from_the_tokens_are_declared_not_decodable() -> None:
    model = load(TransformerConfig, {"attention": {"kind": "masked", "mask": "spans(3)"}}).build().eval()
    inputs, source, lengths = sentences()
    assert model(inputs, source, lengths).isfinite().all()
    assert not model.decodable
    assert SMALL.build().decodable
    state = model.start(2, 8, source=source, source_lengths=lengths)
    with pytest.raises(UserError, match="cannot decode with"):
        model.step(inputs[:, :1], state)
    result = step(ModelUnderTest(model))
    assert "the model (Transformer)" in result.evidence
