"""Plans: traces against real steps and PyTorch's counter, laws of time, and settings that fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.backends.flex import Flex
from regard.attention.mechanisms.masked import WindowConfig
from regard.cli import main
from regard.config import override
from regard.data import TextBatch, TextConfig
from regard.errors import UserError
from regard.models import PRESETS, GPTConfig, RecurrentConfig
from regard.nn.experts.moe import MoEConfig
from regard.plan import (
    Hardware,
    SpeedLaw,
    measure,
    plan,
    random_batch,
    trace,
    variants,
)
from regard.plan.formulas import FORMULAS
from regard.plan.operations import HOST_TIME, StartedBy
from regard.plan.plan import traced
from regard.plan.recurrent import recurrent_counted
from regard.plan.speed import whole_step
from regard.plan.trace import _model, _trace
from regard.tasks import LanguageConfig
from regard.train import AdamWConfig, Experiment, MuonConfig, TrainConfig

SMALL = GPTConfig(vocabulary=300, context=32, layers=2, heads=2, width=32)
STATUS = Path("/proc/self/status")
MODELS = {
    "gpt": SMALL,
    "gpt2": replace(PRESETS["gpt2"], vocabulary=300, context=32, layers=2, heads=2, width=32),
    "ngrams": replace(SMALL, ngrams=3, buckets=64),
    "lstm": RecurrentConfig(vocabulary=300, context=32, layers=1, width=32, cell="lstm"),
    "experts": replace(SMALL, feedforward=MoEConfig(experts=4, active=2)),
}


def experiment(model: Any = SMALL, batch: int = 4, **train: Any) -> Experiment:
    return Experiment(model, TextConfig(batch=batch), train=TrainConfig(**{"precision": "float32", **train}))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"checkpointing": True}, {"optimizer": MuonConfig()}], ids=str)
def test_a_traced_step_is_a_real_one(name: str, options: dict[str, Any]) -> None:
    given = experiment(MODELS[name], **options)
    batch = random_batch(given)
    fake, real = trace(given, batch), _trace(given, _model(given), batch)
    assert fake.micro_batch.flops == pytest.approx(real.micro_batch.flops, rel=0.1 if given.train.checkpointing else 0)
    same = {"parts": {}, "micro_batch": real.micro_batch, "update": real.update, "timeline": real.timeline}
    same |= {"allocations": (), "activations": 0, "growing": 0}
    assert fake._replace(**same) == real._replace(**same)
    if name != "lstm":  # whose kernel keeps a buffer that fake tensors do not have
        assert [fake.activations, fake.growing] == pytest.approx([real.activations, real.growing], rel=0.1)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "ngrams"])
def test_its_flops_are_those_that_the_counter_counts_on_the_reference_path(name: str) -> None:
    model: Any = MODELS[name]
    given = experiment(model)
    own, batch = model.make().train(), cast(TextBatch, random_batch(given))  # without fast paths
    for _, mechanism in own.mechanisms():
        mechanism.backend = "reference"
    with FlopCounterMode(display=False) as counter:
        terms = LanguageConfig().build().terms(own, batch)
        torch.stack([term.total for term in terms.values()]).sum().backward()
    assert trace(given).micro_batch.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_window_counts_the_blocks_that_the_compiled_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flex, "refuses", lambda self, call: [])  # as on a GPU
    long = replace(SMALL, context=1024)
    full = trace(experiment(replace(long, backend="reference")))
    near = trace(experiment(replace(long, attention=WindowConfig(size=128))))
    scores = 14 * 4 * long.layers * long.width * long.context**2  # of two products, and five in the backward pass
    assert full.micro_batch.flops - near.micro_batch.flops == pytest.approx(scores * (1 - 256 / 1024), rel=0.2)
    assert near.activations < full.activations
    assert near.micro_batch.operations < 2 * full.micro_batch.operations
    assert Flex.run.__name__ == "run"


@settings(max_examples=12)
@given(st.sampled_from(list(MODELS)), st.integers(1, 4), st.booleans())
def test_parts_add_up_and_memory_follows_the_batch(name: str, batch: int, half: bool) -> None:
    given = experiment(MODELS[name], batch, precision="bfloat16" if half and name != "lstm" else "float32")
    one, two = trace(given), trace(override(given, [f"--data.batch={2 * batch}"]))
    assert sum(part.parameters for part in one.parts.values()) == one.parameters
    assert min(min(part) for part in one.parts.values()) >= 0
    assert (one.weights, one.gradients, one.optimizer) == (two.weights, two.gradients, two.optimizer)
    assert 2 * one.micro_batch.flops == two.micro_batch.flops or name == "experts"  # which are chosen by numbers
    assert one.activations < two.activations <= 2.2 * one.activations


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_of_a_deep_model_are_extrapolated(checkpointing: bool) -> None:
    deep = experiment(replace(SMALL, layers=32), checkpointing=checkpointing)
    found, expected = traced(deep), trace(deep)
    same = {"activations": 0, "growing": 0, "timeline": expected.timeline, "allocations": ()}
    assert found._replace(**same) == expected._replace(**same)
    law = SpeedLaw(1e-14, 1e-12, 1e-11, 1e-5, queued=True)
    assert law.seconds(whole_step(found, 2)) == pytest.approx(law.seconds(whole_step(expected, 2)), rel=0.01)
    peaks = [expected.activations, expected.growing]
    assert [found.activations, found.growing] == pytest.approx(peaks, rel=0.02)


def test_memory_of_a_cpu_has_fragments() -> None:
    made = plan(experiment(replace(SMALL, layers=4, width=64), batch=8, accumulate=2))
    tensors = made.memory.total - made.memory.fragments
    assert tensors < made.memory.total < 2 * tensors
    sheet = Hardware(memory=80e9, flops=1e15, link=1e11)
    assert plan(experiment(), hardware=sheet).memory.fragments == 0


def test_what_starts_an_operation_decides_its_time_on_the_host() -> None:
    deep = replace(SMALL, layers=4)
    plain, again = (trace(experiment(deep, checkpointing=value)).timeline.micro_batch[0] for value in (False, True))
    assert sum(again.host) > 1.6 * sum(plain.host)  # blocks are recomputed, through functions in Python
    assert len(again.host) > len(plain.host)
    eager = sum(HOST_TIME[StartedBy.PYTHON] for _ in plain.host)
    assert 0.6 * eager < sum(plain.host) < 1.3 * eager  # those of autograd's engine are cheaper; views are added


def test_an_update_makes_no_state_and_its_memory_counts_without_activations() -> None:
    given = experiment(replace(SMALL, width=64), batch=1, optimizer=MuonConfig())
    found = trace(given)
    assert found.update.bytes > 3 * (found.weights + found.optimizer)  # it reads and writes them, and the gradients
    assert plan(given).memory.total >= found.weights + found.gradients + found.optimizer + found.extra


@pytest.mark.parametrize("batch", [6, 32])
@pytest.mark.parametrize("room", [0.1, 0.5, 0.8, 1.0])
def test_what_it_proposes_fits(batch: int, room: float) -> None:
    given = experiment(SMALL, batch, optimizer=AdamWConfig())
    full = plan(given).memory.total
    found = plan(given, limit=full * room)
    assert found.fits == (room >= 1.0)
    if not found.fix:
        assert room in (0.1, 1.0)
        return
    gpus = [int(option.partition("=")[2]) for option in found.fix if option.startswith("--gpus")]
    again = override(given, [option for option in found.fix if not option.startswith("--gpus")])
    other = plan(again, gpus=gpus[0] if gpus else 1, limit=full * room)
    assert other.fits
    assert other.tokens >= found.tokens
    assert not gpus or other.memory.weights < found.memory.weights


def test_half_precision_is_proposed_where_it_runs() -> None:
    given = experiment(SMALL, batch=15, optimizer=AdamWConfig())
    device = Hardware(memory=80e9, flops=1e15, link=1e11)
    full = plan(given, hardware=device).memory.total
    device = device._replace(memory=0.9 * full)
    assert plan(given, hardware=device).fix == ("--train.precision=bfloat16",)
    assert "--train.precision=bfloat16" not in plan(given, limit=0.9 * full).fix


def test_sharding_divides_what_is_stored_and_adds_communication() -> None:
    device = Hardware(memory=80e9, flops=1e15, link=1e11)
    one, many = (plan(experiment(), gpus=gpus, hardware=device) for gpus in (1, 8))
    assert many.memory.weights == pytest.approx(one.memory.weights / 8, rel=0.01)  # 300 rows are padded to 304
    root = 4 * 32 * (300 + 1)  # the embedding and the last norm, which stay from the forward to the backward pass
    assert many.communication == pytest.approx((3 * one.memory.weights - root) * 7 / 8, rel=0.01)
    assert one.communication == 0
    assert many.tokens == 8 * one.tokens


def test_measured_steps_and_variants() -> None:
    given = experiment(replace(SMALL, layers=4, width=64))
    chosen = variants(given, 1e9)
    assert all(trace(one).micro_batch.flops <= 1e9 for one in chosen)
    assert len({one.model for one in chosen}) > 2
    assert measure(chosen[0], random_batch(chosen[0]), torch.device("cpu")).seconds > 0


def test_recurrent_layers_on_a_gpu_count_as_those_of_the_cpu() -> None:
    """The stand-in for cuDNN's kernel, of tensors that are on no device."""
    model = MODELS["lstm"].make()
    x = torch.zeros(2, 32, dtype=torch.int64)
    with recurrent_counted(torch.device("cuda")), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        model.head(model.features(x)).sum().backward()
    weights = 8 * 32**2 * 64 + 300 * 32 * 64  # gates and the output layer, of 64 tokens
    assert counter.get_total_flops() == 6 * weights


def test_data_that_is_not_text_needs_a_batch() -> None:
    from regard.data import SeriesConfig

    with pytest.raises(UserError, match="pass one"):
        trace(replace(experiment(), data=SeriesConfig()))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model.layers", "2", "--no-measure", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["fits"]
    assert record["flops"] == record["steps"] * record["flops_per_step"]
    assert main(["plan", "--model", "gpt2", "--model.layers", "2", "--memory", "1", "--no-measure"]) == 0
    assert "does not fit: cpu has 1 GB" in capsys.readouterr().out
    sizes = ["--model.heads", "8", "--model.context", "1024", "--data.batch", "1", "--train.precision", "float32"]
    assert main(["plan", "--model.layers", "1", "--no-measure", *sizes]) == 0
    assert "attention scores of a layer: 33.6 MB" in capsys.readouterr().out  # 8 heads x 1,024² x 4 bytes
    assert main(["plan", "--hardware", "abacus"]) == 2
    assert "known are a100" in capsys.readouterr().err


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells the peak memory of a process by itself")
def test_a_plan_of_175_billion_parameters_allocates_little() -> None:
    script = (
        "from regard.cli import main; main('plan --model gpt3-175b --gpus 1024 --json'.split());"
        f"print(open('{STATUS}').read().split('VmHWM:')[1].split()[0])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    record, kilobytes = out.strip().rsplit("\n", 1)
    found = json.loads(record)
    assert found["parameters"] == pytest.approx(174.6e9, rel=0.01)
    scores = 2 * 2 * 96 * 2048**2 * 12288  # of 96 layers, which the estimate of 2 FLOPs per parameter leaves out
    assert found["flops_per_token"] / 3 * 2048 - scores == pytest.approx(717e12, rel=0.01)
    assert int(kilobytes) < 700_000
