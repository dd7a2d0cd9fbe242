"""The model contract, over every registered model and one defined outside the package (models_kit.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_kit import CONFIGS, LENGTH, ROWS, batch, build, gradients, loss, run_ranks
from safetensors.torch import load_file
from torch import nn

from regard.attention import Padded
from regard.config.choice import kinds
from regard.models import ModelConfig, describe
from regard.models.base import LanguageModel, Model, Seq2SeqModel
from regard.train import MuonConfig
from regard.train.muon import Muon

every_model = pytest.mark.parametrize("kind", CONFIGS)


def train_step(model: Model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss(model).backward()
    return gradients(model)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


def test_every_registered_model_is_here():
    package = {kind for kind, config in kinds(ModelConfig).items() if config.__module__.startswith("regard.")}
    assert package | {"moving-average"} == set(CONFIGS)


@every_model
def test_every_parameter_gets_a_gradient(kind: str):
    model = build(kind)
    assert train_step(model).keys() == dict(model.named_parameters()).keys()


@every_model
def test_checkpointing_computes_every_block_twice_with_the_same_gradients(kind: str):
    model, expected, entered = build(kind), train_step(build(kind)), []
    model.checkpointing = True
    for block in model.blocks:
        block.register_forward_pre_hook(lambda block, _: entered.append(block))
    assert_same(train_step(model), expected)
    assert len(entered) == 2 * len(list(model.blocks))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder)
    return folder


@every_model
@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_ranks_equal_one_process(kind: str, checkpointing: bool, ranks: Path):
    assert_same(load_file(ranks / f"{kind}-{checkpointing}"), train_step(build(kind)))


@every_model
def test_compiled_equals_eager_or_the_model_declares_that_it_cannot(kind: str):
    model = build(kind)
    if not model.compilable:
        return
    expected = train_step(build(kind))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.zero_grad()
    loss(model, call=compiled).backward()
    assert_same(gradients(model), expected)


@every_model
def test_step_equals_the_full_pass(kind: str):
    model = build(kind).eval()
    inputs, _ = batch(model)
    expected = model(*inputs)
    if isinstance(model, LanguageModel):
        state = model.start(ROWS, 16)
        pieces = []
        for piece in inputs[0].split([3, 1, 1, 2], dim=1):
            logits, state = model.step(piece, state)
            pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, dim=1), expected)
        assert state.used == LENGTH
        again, _ = model.step(inputs[0], model.start(ROWS, 16), last=True)
        torch.testing.assert_close(again, expected[:, -1:])
    elif isinstance(model, Seq2SeqModel):
        tokens, source, lengths = inputs
        state = model.start(ROWS, 16, source=source, source_lengths=lengths)
        pieces = []
        for piece in tokens.split([3, 1, 1, 2], dim=1):
            logits, state = model.step(piece, state)
            pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, dim=1), expected)


@every_model
def test_padded_equals_alone(kind: str):
    model = build(kind).eval()
    inputs, _ = batch(model)
    lengths = torch.tensor([7, 3, 5, 1])
    if isinstance(model, Seq2SeqModel):
        tokens, source, _ = inputs
        padded = model(tokens, source, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = model(tokens[row : row + 1], source[row : row + 1, :length], lengths[row : row + 1])
            torch.testing.assert_close(padded[row : row + 1], alone)
        return
    padded = model(inputs[0], Padded(lengths, LENGTH))
    for row, length in enumerate(lengths.tolist()):
        alone = model(inputs[0][row : row + 1, :length])
        shown = padded[row : row + 1, :length] if padded.ndim == 3 else padded[row : row + 1]
        torch.testing.assert_close(shown, alone)


@every_model
def test_muon_gets_exactly_the_hidden_matrices(kind: str):
    model = build(kind)
    (muon,) = (part for part in MuonConfig().build(model).parts if isinstance(part, Muon))
    chosen = {parameter for group in muon.param_groups for parameter in group["params"]}
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = {p for name, p in model.named_parameters() if p.ndim == 2 and p not in tables and "embed" not in name}
    assert chosen == hidden
    assert chosen


@every_model
def test_describe_counts_the_model(kind: str):
    found = describe(CONFIGS[kind])
    assert found["parameters"] == sum(p.numel() for p in build(kind).parameters())
    assert 0 < found["parameters_in_blocks"] < found["parameters"]
    assert found["flops_per_token"] >= 6 * found["parameters"]


@every_model
def test_a_reduced_config_keeps_the_parts(kind: str):
    config = CONFIGS[kind].reduced()
    assert type(config) is type(CONFIGS[kind])
    assert config.width <= CONFIGS[kind].width
    config.build()
