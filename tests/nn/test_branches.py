"""A branch taken as one step equals the layers it stands for, and steps aside for whoever watches them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import Padded
from regard.config import load
from regard.models.gpt import GPTConfig
from regard.nn.linear import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this build of PyTorch has no oneDNN")
LEAN = {"position": "learned", "norm": "layer", "qk_norm": False, "zero_init": False, "layers": 2, "context": 128}


def model(seed=0, **changes):
    torch.manual_seed(seed)
    built = load(GPTConfig, {**LEAN, **changes}).build()
    for parameter in built.parameters():  # gains of 1 and biases of 0 would hide a mistake
        torch.nn.init.normal_(parameter, std=0.2)
    return built


def nodes(out):
    """The names of all autograd nodes behind a tensor."""
    seen, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
    return {type(node).__name__ for node in seen}


def outcome(built, tokens, slots=None):
    logits = built(tokens, slots)
    weight = torch.linspace(-1, 1, logits.numel()).view(logits.shape)
    gradients = torch.autograd.grad((logits * weight).sum(), list(built.parameters()), allow_unused=True)
    return [logits, *(g for g in gradients if g is not None)]


def watched(built):
    """The same model, with somebody looking at every layer."""
    for module in built.modules():
        module.register_forward_hook(lambda *_: None)
    return built


@given(
    bias=st.booleans(),
    shift=st.booleans(),
    heads=st.sampled_from([1, 4]),
    width=st.sampled_from([16, 48]),
    kind=st.sampled_from(["relu2", "gelu"]),
    shape=st.sampled_from([(4, 16), (1, 128), (3, 70)]),
    seed=st.integers(0, 3),
)
def test_one_step_equals_the_layers(bias, shift, heads, width, kind, shape, seed):
    norm = {"kind": "layer", "bias": shift, "eps": 1e-3}
    parts = {"bias": bias, "norm": norm, "heads": heads, "width": width, "feedforward": kind}
    tokens = torch.randint(65, shape)
    ours, layers = model(seed, **parts), watched(model(seed, **parts))
    assert "_AttentionBranchBackward" in nodes(ours(tokens))
    assert ("_SquaredBranchBackward" in nodes(ours(tokens))) == (kind == "relu2" and not bias)
    assert not any("Branch" in name for name in nodes(layers(tokens)))
    for one, two in zip(outcome(ours, tokens), outcome(layers, tokens), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * float(two.detach().abs().max()))


@pytest.mark.parametrize(
    "change",
    [
        {"position": "rotary"},
        {"qk_norm": True},
        {"kv_heads": 2},
        {"norm": "rms"},
        {"dropout": 0.1},
        {"block": "post-norm"},
        {"backend": "reference"},
    ],
    ids=str,
)
def test_other_parts_are_left_to_the_layers(change):
    assert "_AttentionBranchBackward" not in nodes(model(**change)(torch.randint(65, (4, 32))))


def test_padding_is_left_to_the_layers():
    """Rows of padding must come out as the layers leave them."""
    slots = Padded(torch.tensor([32, 20]), 32)
    tokens = torch.randint(65, (2, 32))
    assert "_AttentionBranchBackward" not in nodes(model()(tokens, slots))
    real = slots.filled()
    alone = model()(tokens[1:, :20])
    torch.testing.assert_close(model()(tokens, slots)[1][real[1]], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize(
    "layer", ["norm_attention", "attention", "attention.qkv", "attention.mechanism", "feedforward.up"]
)
def test_a_hook_on_any_layer_is_called(layer, register):
    built, calls = model(), []
    handle = getattr(built.blocks[0].get_submodule(layer), register)(lambda *_: calls.append(1))
    built(torch.randint(65, (4, 32))).sum().backward()
    handle.remove()
    assert calls


def test_a_layer_of_another_kind_is_called():
    built = model()
    built.blocks[0].get_submodule("attention").qkv = torch.nn.Linear(128, 384, bias=False)
    out = built(torch.randint(65, (4, 32)))
    assert "MmBackward0" in nodes(out) or "UnsafeViewBackward0" in nodes(out) or "AddmmBackward0" in nodes(out)
    assert "_AttentionBranchBackward" in nodes(out)  # the other block's


def test_what_a_layer_was_given_is_used():
    """A forward of its own, another activation, or a backend asked for by name."""
    tokens = torch.randint(65, (4, 32))
    for change in (
        lambda block: setattr(block.attention.qkv, "forward", lambda x: torch.zeros(*x.shape[:-1], 384)),
        lambda block: setattr(block.feedforward, "activation", torch.nn.functional.gelu),
        lambda block: setattr(block.attention.mechanism, "backend", "reference"),
    ):
        ours, layers = model(), watched(model())
        change(ours.blocks[1]), change(layers.blocks[1])
        torch.testing.assert_close(ours(tokens), layers(tokens), rtol=1e-4, atol=1e-3)
        assert sum(name.startswith("_") and "Branch" in name for name in nodes(ours(tokens))) >= 1


def test_outputs_can_be_changed_in_place():
    """As a hook that steers a model does; a view made inside a function could not."""
    out = model().blocks[0].get_submodule("attention.qkv")(torch.randn(4, 32, 128, requires_grad=True))
    out += 1
    block = model()(torch.randint(65, (4, 32)))
    block[:, -1] += 1
    block.sum().backward()
