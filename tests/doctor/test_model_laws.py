"""What every layer and every loss over classes keeps: sound ones pass, and a fault of a class is found."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_faults.kit import Case, training
from test_doctor import watched
from torch import Tensor
from torch.nn import functional as F

from regard.config import to_toml
from regard.config.choice import kinds
from regard.data import ArrayBatch, TextBatch
from regard.doctor import Doctor, ModelPass, SidePass, TrainingRun
from regard.doctor.checks.class_loss import ClassLoss, MixedRows
from regard.doctor.checks.component_derivative import MissingComponent
from regard.doctor.checks.evaluation import matters
from regard.doctor.checks.layer_formula import WrongFormula
from regard.doctor.checks.targets import TargetFault
from regard.models import EncoderConfig, GPTConfig, RecurrentConfig, ViTConfig
from regard.nn.attention import SelfAttention
from regard.nn.blocks.block import BlockConfig, PreNorm
from regard.nn.feedforward import FeedForwardConfig, GatedFeedForward, SwiGLUConfig
from regard.nn.norm import LayerNormConfig, RMSNorm
from regard.nn.positions.position import PositionConfig
from regard.runs import Run
from regard.tasks import ArrayClassificationConfig, LanguageConfig, MaskedTokensConfig, masked
from regard.tasks.arrays import ArrayClassificationTask
from regard.train import Experiment, engine, pretrained, train
from regard.train.adapt import AdaptConfig

KINDS = kinds(AdaptConfig)
BLOCKS = [one for one in kinds(BlockConfig).values() if one.__module__.startswith("regard.")]
NETWORKS = [one for one in kinds(FeedForwardConfig).values() if one.__module__.startswith("regard.")]
POSITIONS = [one for one in kinds(PositionConfig).values() if one.__module__.startswith("regard.")]


def text_pass(**changes: Any) -> SidePass:
    """A pass of a small GPT over random tokens."""
    sizes: dict[str, Any] = {"vocabulary": 19, "context": 12, "layers": 2, "heads": 2, "width": 16}
    config = GPTConfig(**{**sizes, **changes})
    torch.manual_seed(1)
    model = config.build()
    for parameter in model.parameters():  # no layer begins with zeros
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    tokens = torch.randint(19, (3, 13))
    run = TrainingRun(Experiment(config, task=LanguageConfig()), model=model)
    return SidePass(run, TextBatch(tokens[:, :-1], tokens[:, 1:]))


def found(check: type, model_pass: ModelPass) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in check(model_pass.run).on_pass(model_pass)]


@pytest.mark.parametrize("block", BLOCKS)
def test_sound_blocks_keep_their_formula(block: type[BlockConfig]) -> None:
    try:
        sound = text_pass(block=block(), norm=LayerNormConfig())
    except ValueError as refused:
        pytest.skip(str(refused))
    assert found(WrongFormula, sound) == found(MixedRows, sound) == found(MissingComponent, sound) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_sound_networks_keep_their_formula(network: type[FeedForwardConfig]) -> None:
    sound = text_pass(feedforward=network())
    assert found(WrongFormula, sound) == found(MissingComponent, sound) == []


@pytest.mark.parametrize("position", POSITIONS)
def test_sound_positions_keep_the_formula_of_attention(position: type[PositionConfig]) -> None:
    try:
        sound = text_pass(position=position(), kv_heads=1, qk_norm=True)
    except ValueError as refused:
        pytest.skip(str(refused))
    assert found(WrongFormula, sound) == []


def unscaled(self: Any, x: Tensor) -> Tensor:
    return x * self.gain


def without_residual(self: PreNorm, x: Tensor, context: Any) -> Tensor:
    x = self.attention(self.norm_attention(x), context)
    return x + self.feedforward(self.norm_feedforward(x))


def without_gate(self: GatedFeedForward, x: Tensor) -> Tensor:
    return self.down(self.gate_up(x).chunk(2, dim=-1)[1])


@pytest.mark.parametrize(
    ("owner", "forward", "where"),
    [
        (RMSNorm, unscaled, "norm_attention"),
        (PreNorm, without_residual, "norm_feedforward"),
        (GatedFeedForward, without_gate, "feedforward"),
    ],
)
def test_a_fault_of_a_class_is_found(
    owner: type, forward: Callable[..., Tensor], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = text_pass(feedforward=SwiGLUConfig())
    for kind in (owner, *owner.__subclasses__()):
        monkeypatch.setattr(kind, "forward", forward)
    ((kind, place),) = found(WrongFormula, faulty)
    assert kind == "wrong_formula"
    assert where in place


def test_attention_over_the_wrong_axis_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.attention import Out, Softmax

    def over_queries(self: Softmax, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Out:
        return Out((q @ k.transpose(-2, -1)).tril().softmax(-2) @ v)

    monkeypatch.setattr(Softmax, "forward", over_queries)
    ((_, place),) = found(WrongFormula, text_pass())
    assert place.endswith("attention.mechanism")


def test_a_missing_component_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    split = SelfAttention._split

    def detached(self: SelfAttention, heads: Tensor, rotation: Any) -> tuple[Tensor, ...]:
        q, k, v = split(self, heads, rotation)
        return q, k, v.detach()

    monkeypatch.setattr(SelfAttention, "_split", detached)
    wrong = found(MissingComponent, text_pass())
    assert ("missing_component", "blocks.0.attention.qkv.weight, matrix 3 of 3") in wrong
    assert not any("matrix 1 of 3" in where or "feedforward" in where for _, where in wrong if "blocks.1" in where)


def image_pass(labels: int, targets: Tensor, **task: Any) -> ModelPass:
    """A pass of a small Vision Transformer over random images."""
    config = ViTConfig(image=4, channels=1, patch=2, layers=1, heads=1, width=8)
    names = tuple(str(label) for label in range(labels))
    config = config.with_classes(names)
    experiment = Experiment(config, task=ArrayClassificationConfig(labels=names, **task))
    batch = ArrayBatch(torch.randn(len(targets), 1, 4, 4), targets[:, None])
    return ModelPass(TrainingRun(experiment, model=config.build()), batch)


@given(st.integers(2, 12), st.integers(1, 20), st.floats(0, 0.5), st.integers(0, 2**31))
def test_sound_losses_of_classes_pass(labels: int, rows: int, smoothing: float, seed: int) -> None:
    torch.manual_seed(seed)
    targets = torch.randint(-1, labels, (rows,))
    weights = tuple((torch.rand(labels) + 0.1).tolist()) if seed % 2 else ()
    sound = image_pass(labels, targets, weights=weights, smoothing=smoothing)
    assert found(ClassLoss, sound) == found(MixedRows, sound) == []


def shifted(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, (targets + 1) % scores.shape[-1], reduction="none")


def without_softmax(scores: Tensor, targets: Tensor) -> Tensor:
    return -scores.gather(1, targets[:, None])[:, 0]


def over_rows(scores: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(scores.log_softmax(0), targets, reduction="none")


def without_class_2(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, ignore_index=2, reduction="none")


def doubled(scores: Tensor, targets: Tensor) -> Tensor:
    return 2 * F.cross_entropy(scores, targets, reduction="none")


@pytest.mark.parametrize("loss", [shifted, without_softmax, over_rows, without_class_2, doubled])
def test_unsound_losses_of_classes_are_found(
    loss: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(self: Any, kind: Any, scores: Tensor, targets: Tensor, **_: float) -> Tensor:
        return loss(scores.flatten(0, 1), targets.flatten())

    monkeypatch.setattr(ArrayClassificationTask, "_losses", losses)
    ((kind, where),) = found(ClassLoss, image_pass(4, torch.arange(12) % 4))
    assert (kind, where) == ("class_loss", "the task, class 2" if loss is without_class_2 else "the task")


def test_a_mode_matters_where_something_depends_on_it() -> None:
    still, dropping = (GPTConfig(vocabulary=9, context=8, dropout=rate).build() for rate in (0.0, 0.1))
    assert not any(map(matters, still.modules()))
    assert any(map(matters, dropping.modules()))
    carrying = replace(RecurrentConfig(vocabulary=9, context=8), carry=True).build()
    assert any(map(matters, carrying.modules()))


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_masked_model_must_not_read_what_it_predicts(
    hides: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EncoderConfig(vocabulary=19, context=64, layers=1, heads=2, width=16)
    task = MaskedTokensConfig(share=share)
    run = TrainingRun(Experiment(config, task=task), model=config.build())
    tokens = torch.randint(19, (4, 64), generator=torch.Generator().manual_seed(1))
    if not hides:
        real = masked._draws
        monkeypatch.setattr(masked, "_draws", lambda *given: (real(*given)[0], torch.ones(tokens.shape), tokens))
    findings = TargetFault(run).on_model(SidePass(run, TextBatch(tokens, tokens)))
    assert [(one.kind, one.where) for one in findings] == [("target_fault", "the masked inputs")] * (not hides)


@pytest.mark.parametrize("divided", [True, False])
def test_the_loss_of_an_update_is_the_mean_over_its_micro_batches(
    divided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not divided:
        real = engine.shares
        monkeypatch.setattr(
            engine, "shares", lambda terms, counts, n: real(terms, {k: v / n for k, v in counts.items()}, 1.0)
        )
    doctor, _ = watched(Case(training(tmp_path, train={"steps": 2, "accumulate": 3})), tmp_path)
    assert [(one.kind, one.where) for one in doctor.findings.values()] == [("step_differs", "train.accumulate")] * (
        not divided
    )


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("adapt", ["full", "lora", "qlora"])
def test_a_run_starts_with_the_weights_of_its_model(
    loaded: bool, adapt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = training(tmp_path, train={"steps": 4})
    first = Run.create(tmp_path, "first", to_toml(sound), {})
    train(sound, first)
    if not loaded:
        monkeypatch.setattr(pretrained, "load_weights", lambda *given: None)
    tuned = replace(sound, init=str(first.path), train=replace(sound.train, adapt=KINDS[adapt](), steps=2))
    second, doctor = Run.create(tmp_path, "second", to_toml(tuned), {}), Doctor(out=io.StringIO())
    train(tuned, second, [doctor])
    found = [(one.kind, one.where) for one in doctor.findings.values()]
    assert (("model_differs", "the weights of --init") in found) == (not loaded), found
    assert found == [] or not loaded
