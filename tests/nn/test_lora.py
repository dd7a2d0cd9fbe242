"""Adapters: nothing changes at first, merged equals unmerged, and no layer is adapted without effect."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models import GPTConfig, ModelConfig
from regard.nn.lora import LowRankAdapter, install_lora, merged
from regard.nn.quantized import Int4Config, Int8Config
from regard.train.adapt import FrozenConfig, LoRAConfig, frozen_names

TARGETS = ("attention", "feedforward")
TOKENS = torch.arange(14).view(2, 7) % 11
SMALL: dict[str, Any] = {"vocabulary": 11, "context": 8, "layers": 2, "heads": 2, "width": 16}


def _shaken(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Adapters with other values than 0, as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LowRankAdapter):
                module.lora_b.copy_(torch.randn(module.lora_b.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


@settings(deadline=None, max_examples=15)
@given(
    rank=st.integers(1, 6),
    alpha=st.floats(0.1, 64),
    seed=st.integers(0, 99),
    feedforward=st.sampled_from(["relu2", "gelu", "swiglu", "moe"]),
    projection=st.sampled_from(["separate", "shared", "latent"]),
    quantization=st.sampled_from([None, Int8Config(), Int4Config(group=4), Int4Config(group=32)]),
)
def test_merged_equals_unmerged(rank, alpha, seed, feedforward, projection, quantization) -> None:
    torch.manual_seed(seed)
    config = GPTConfig(**SMALL, bias=True, feedforward=feedforward, projection=projection)
    plain = config.build().double().eval()
    adapted = deepcopy(plain)
    report = install_lora(adapted, TARGETS, rank, alpha, quantization=quantization)
    plain.load_state_dict(merged(adapted.state_dict()))  # B is 0; a quantized matrix is a rounded one
    torch.testing.assert_close(adapted(TOKENS), plain(TOKENS), rtol=1e-12, atol=1e-12)
    _shaken(adapted, seed)
    assert (adapted(TOKENS) - plain(TOKENS)).abs().max() > 1e-6
    merged_model = config.build().double().eval()
    merged_model.load_state_dict(merged(adapted.state_dict()))
    torch.testing.assert_close(merged_model(TOKENS), adapted(TOKENS), rtol=1e-10, atol=1e-10)
    own = sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)
    assert own == sum(layer.parameters for layer in report)


def test_merged_equals_unmerged_in_float32_to_rounding() -> None:
    torch.manual_seed(0)
    config = replace(GPTConfig(**SMALL), width=64)
    adapted = config.build().eval()
    install_lora(adapted, TARGETS)
    _shaken(adapted, 0)
    plain = config.build().eval()
    plain.load_state_dict(merged(adapted.state_dict()))
    torch.testing.assert_close(plain(TOKENS), adapted(TOKENS), rtol=1e-4, atol=1e-5)


def test_every_adapter_gets_a_gradient_while_decoding_agrees() -> None:
    """An adapter beside a matrix that is used without its layer would be trained, saved and without effect."""
    choices: Any = (("latent", "moe"), ("separate", "relu2"), ("shared_qk", "swiglu"))
    for projection, feedforward in choices:
        torch.manual_seed(1)
        model = GPTConfig(**SMALL, projection=projection, feedforward=feedforward).build().eval()
        install_lora(model, TARGETS)
        _shaken(model, 1)
        logits = model(TOKENS)
        logits.square().sum().backward()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                assert parameter.grad is not None, name
                assert parameter.grad.any(), name
        state, steps = model.start(2, 8), []
        for token in TOKENS.split(1, dim=1):
            found, state = model.step(token, state)
            steps.append(found)
        torch.testing.assert_close(torch.cat(steps, 1), logits.detach(), rtol=1e-3, atol=1e-4)


def test_a_layer_without_adapter_has_a_reason() -> None:
    parts: dict[str, Any] = {"feedforward": "moe", "projection": "latent"}
    model = GPTConfig(**SMALL, **parts).build()
    reasons = {layer.name: layer.reason for layer in install_lora(model, TARGETS)}
    assert "groups" in reasons["blocks.0.feedforward.down"]
    assert "query" in reasons["blocks.1.attention.up"]
    assert reasons["unembed"] == "no target"
    assert not reasons["blocks.0.attention.qkv"]


@pytest.mark.parametrize("model", [GPTConfig(**SMALL), None], ids=["gpt", "encoder"])
def test_only_adapters_and_a_new_head_are_trained(model: ModelConfig | None) -> None:
    from regard.models.encoder import EncoderConfig
    from regard.nn.heads import ClassesHeadConfig

    built = (model or EncoderConfig(**SMALL, head=ClassesHeadConfig(classes=3, dense="tanh"))).build()
    LoRAConfig(rank=2, targets=("qkv",)).apply(built)
    trained = {name.split(".")[-1] for name, p in built.named_parameters() if p.requires_grad}
    head = {"weight", "bias"} if model is None else set()
    assert trained == {"lora_a", "lora_b", *head}
    assert "blocks.0.attention.qkv.weight" in frozen_names(built)


def test_frozen_names_its_modules() -> None:
    from regard.errors import UserError

    model = GPTConfig(**SMALL, tied=False).build()
    FrozenConfig().apply(model)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["unembed.weight"]
    with pytest.raises(UserError, match=r"no such module; it has .*embed"):
        FrozenConfig(trained=("classifier",)).apply(model)
    with pytest.raises(UserError, match=r"its layers are called .*qkv"):
        LoRAConfig(targets=("query",)).apply(model)
