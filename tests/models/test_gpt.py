"""The GPT: what it refuses, how it starts, and what its options do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.attention import Causal, Padded, SoftmaxConfig, Window, WindowConfig
from regard.config import load
from regard.errors import UserError
from regard.models import GPT, GPTConfig, ModelConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.norm import NoNormConfig
from regard.nn.positions.position import LearnedPositionConfig, SinusoidalConfig

SMALL = GPTConfig(vocabulary=11, context=16, layers=2, heads=2, width=8)


def tokens(rows: int = 2, length: int = 6) -> torch.Tensor:
    return torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 10, "heads": 4}, "width 10 is not divisible by 4 heads; heads = 5 would do"),
        ({"width": 128, "heads": 3}, "width 128 is not divisible by 3 heads; heads = 4 would do"),
        ({"width": 60, "heads": 9}, "width 60 is not divisible by 9 heads; heads = 10 would do"),
        ({"width": 128, "heads": 6}, "width 128 is not divisible by 6 heads; heads = 4 would do"),
        ({"heads": 2, "kv_heads": 3}, "2 heads cannot share 3 key/value heads evenly"),
        ({"kv_heads": 0}, "cannot share 0 key/value heads"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"layers": "2"}, "layers must be a whole number, not '2'"),
        ({"width": 32.0}, "width must be a whole number, not 32.0"),
        ({"vocabulary": 0}, "vocabulary must be at least 1, not 0"),
        ({"ngrams": 0}, "ngrams must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"attention": WindowConfig(0)}, "size must be at least 1, not 0"),
        ({"width": 6, "heads": 2}, "a head width of 3 is odd"),
        ({"position": SinusoidalConfig(mode="concatenate")}, "set tied = false"),
    ],
)
def test_impossible_configs(change: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()


def test_a_bad_size_in_a_table_names_its_key() -> None:
    with pytest.raises(UserError, match="width 10 is not divisible by 4 heads"):
        load(ModelConfig, {"kind": "gpt", "width": 10, "heads": 4})


def test_an_unknown_backend_is_an_error_and_an_unable_one_when_it_is_used() -> None:
    with pytest.raises(UserError, match="no backend 'fast'"):
        replace(SMALL, backend="fast").build()
    with pytest.raises(ValueError, match="backend 'flex' cannot do this call"):
        replace(SMALL, backend="flex").build()(tokens())


def test_features_and_head_make_the_forward_pass() -> None:
    model = SMALL.build()
    logits = model(tokens())
    assert logits.shape == (2, 6, 11)
    assert model.features(tokens()).shape == (2, 6, 8)
    assert torch.equal(model.head(model.features(tokens())), logits)


def test_tied_and_untied_heads() -> None:
    tied, untied = SMALL.build(), replace(SMALL, tied=False).build()
    assert tied.unembed.weight is tied.embed.weight
    assert untied.unembed.weight is not untied.embed.weight
    more = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert more == 11 * 8


def test_the_cap_bends_logits() -> None:
    model = replace(SMALL, cap=2.0).build()
    plain = model.unembed(features := 100 * model.features(tokens()))
    assert plain.abs().max() > 2
    torch.testing.assert_close(model.head(features), 2 * torch.tanh(plain / 2))


def test_zero_init_starts_every_block_as_the_identity() -> None:
    for zero in (True, False):
        model = replace(SMALL, zero_init=zero).build()
        embedded = model.norm(model.embed(tokens()))
        assert torch.equal(model.features(tokens()), embedded) == zero


def test_ngrams_start_as_the_plain_model() -> None:
    model = replace(SMALL, ngrams=3).build()
    assert len(model.ngrams.tables) == 2
    assert torch.equal(model.features(tokens()), model.norm(model.embed(tokens())))


def test_initial_deviations() -> None:
    model = GPTConfig(vocabulary=200, width=64, heads=2, layers=8, zero_init=False, bias=True).build()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif name.endswith("gain"):
            gain = (0.02 * 64) ** (-2 / 3) if name == "norm.gain" else 1.0  # the last one: small logits
            assert torch.equal(parameter, torch.full_like(parameter, gain)), name
        elif parameter.ndim == 2 and "ngrams" not in name:
            deviation = 0.02 / 4 if name.endswith(("attention.out.weight", "feedforward.down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(deviation, rel=0.1), name


def test_weights_follow_the_seed() -> None:
    built = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        built.append(SMALL.build().state_dict())
    assert all(torch.equal(built[0][name], built[1][name]) for name in built[0])
    assert not torch.equal(built[0]["embed.weight"], built[2]["embed.weight"])


def test_masks_by_layer() -> None:
    local = Causal() & Window(4)
    for attention, mask in ((SoftmaxConfig(), Causal()), (WindowConfig(4), local)):
        model = replace(SMALL, layers=4, attention=attention).build()
        assert (model.masks, model.mask_of_layer) == ([mask], [0] * 4)
    model = replace(SMALL, layers=5, attention=WindowConfig(4), global_every=2).build()
    assert model.masks == [local, Causal()]
    assert model.mask_of_layer == [0, 1, 0, 1, 0]


def test_post_norm_has_no_final_norm() -> None:
    assert isinstance(replace(SMALL, block=PostNormConfig()).build().norm, torch.nn.Identity)
    assert isinstance(replace(SMALL, norm=NoNormConfig()).build().norm, torch.nn.Identity)


# Layer sharing


def test_repeated_layers_are_one_block() -> None:
    """As many parameters as without the repetition, one memory per layer all the same."""
    config = replace(SMALL, layers=4, repeat=2, attention=WindowConfig(4))
    model, half = config.build(), replace(config, layers=2, repeat=1).build()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in half.parameters())
    assert model.mask_of_layer == [0] * 4
    assert len(model.start(2, 8).layers) == 4
    one, two, three, four = model.blocks.layers
    assert one is two
    assert three is four
    assert one is not three


def test_gradients_of_a_repeated_layer_sum_over_its_uses() -> None:
    """Equal to a model with as many blocks of their own, each with the shared weights."""
    shared = replace(SMALL, layers=4, repeat=2, zero_init=False).build().double()
    apart = replace(SMALL, layers=4, zero_init=False).build().double()
    for i, block in enumerate(apart.blocks):
        block.load_state_dict(shared.blocks[i // 2].state_dict())
    rest = {name: weight for name, weight in shared.state_dict().items() if not name.startswith("blocks.")}
    apart.load_state_dict(rest, strict=False)
    torch.testing.assert_close(shared(tokens()), apart(tokens()))
    for model in (shared, apart):
        model(tokens()).square().sum().backward()
    for name, parameter in shared.named_parameters():
        if name.startswith("blocks."):
            _, i, inner = name.split(".", 2)
            uses = [apart.get_parameter(f"blocks.{j}.{inner}").grad for j in (2 * int(i), 2 * int(i) + 1)]
            torch.testing.assert_close(parameter.grad, sum(grad for grad in uses if grad is not None))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"layers": 3, "repeat": 2}, "3 layers are not a multiple of repeat = 2; repeat = 1 would do"),
        ({"repeat": 0}, "repeat must be at least 1, not 0"),
        ({"layers": 4, "repeat": 2, "global_every": 2}, "a block that is repeated has one attention"),
    ],
)
def test_impossible_repetitions(change: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()


def test_repeated_layers_may_all_be_global() -> None:
    model = replace(SMALL, layers=4, repeat=2, attention=WindowConfig(4), global_every=1).build()
    assert model.masks == [Causal()]


@pytest.mark.parametrize("backend", ["sdpa", "banded", "reference"])
def test_a_backend_by_name_gives_the_same_logits(backend: str) -> None:
    config = replace(SMALL, zero_init=False, attention=WindowConfig(3), global_every=2, kv_heads=1)
    model = config.build()
    named = GPT(replace(config, backend=backend))
    named.load_state_dict(model.state_dict())
    torch.testing.assert_close(named(tokens()), model(tokens()), atol=1e-5, rtol=1e-5)


def test_checkpointing_recomputes_and_changes_no_gradient() -> None:
    model = replace(SMALL, zero_init=False).build().train()
    runs = []
    model.get_submodule("blocks.0.attention").register_forward_hook(lambda *_: runs.append(1))
    gradients = []
    for model.checkpointing in (False, True):
        model.zero_grad()
        runs.clear()
        model(tokens()).square().sum().backward()
        assert len(runs) == 1 + model.checkpointing
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_dropout_in_training_only() -> None:
    model = replace(SMALL, dropout=0.3, zero_init=False).build()
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))


# Decoding


def test_a_full_state_says_so() -> None:
    model = SMALL.build()
    _, state = model.step(tokens(length=6), model.start(2, 8))
    with pytest.raises(UserError, match="the state holds 8 tokens, 6 are there and 3 more were given"):
        model.step(tokens(length=3), state)


def test_learned_positions_end_at_the_context() -> None:
    model = replace(SMALL, position=LearnedPositionConfig()).build()
    assert model(tokens(length=16)).shape == (2, 16, 11)
    with pytest.raises(UserError, match="the input has 17 tokens, but the learned positions end at 16"):
        model(tokens(length=17))
    with pytest.raises(UserError, match="the learned positions end at 16"):
        model.start(2, 17)


def test_other_positions_go_past_the_context() -> None:
    assert SMALL.build()(tokens(length=40)).shape == (2, 40, 11)


def test_a_step_leaves_no_graph_and_its_buffers_in_place() -> None:
    model = SMALL.build()
    state = model.start(2, 10, fixed=True)
    before = [x.data_ptr() for layer in state.layers for x in layer] + [state.position.data_ptr()]
    logits, state = model.step(tokens(length=4), state)
    logits, state = model.step(tokens(length=1), state)
    assert not logits.requires_grad
    assert state.used == 5
    assert state.position.tolist() == [5, 5]
    assert before == [x.data_ptr() for layer in state.layers for x in layer] + [state.position.data_ptr()]


def test_padded_rows_take_the_fast_path() -> None:
    model = SMALL.build()
    plan = model._mechanism(0).plan(model.masks[0], Padded(torch.tensor([6, 2]), 6), like=model.embed(tokens()))
    assert plan.backend == "small_cpu"
    offset, _ = plan.prepared
    assert offset.shape == (6, 6)  # one square for the batch, not one for every row
