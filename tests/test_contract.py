"""The contract carries: one small GPT, the same weights and the same texts, driven every way there is.

Every way is held to the same measure, ``alone``: each text by itself, in a batch of one, in eager mode. Logits, the
summed loss and the gradient of every parameter agree to 1e-10 in float64 and 1e-5 in float32 (of the tensor's greatest
element, where that is above 1). ``contract_model.py`` holds the model, the batches and the measure,
``contract_watch.py`` looks at a model from outside, ``fsdp_worker.py`` is one rank of two.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.export import Dim, export

from contract_model import (
    BATCHES,
    COMPILED,
    TOLERANCE,
    FromLengths,
    Outcome,
    alone,
    assert_same,
    check_steps,
    far,
    outcome,
    packed_batch,
    padded_batch,
    plain_batch,
    small_gpt,
)
from contract_watch import Tensors, tensors_in, watch_plans
from forked_ranks import run_ranks
from fsdp_worker import WAYS
from regard.attention import AttentionConfig, SoftmaxConfig, WindowConfig

both_types = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_batch = pytest.mark.parametrize("kind", BATCHES)


@cache
def measure(kind: str, dtype: torch.dtype) -> Outcome:
    return alone(small_gpt(dtype), BATCHES[kind]())


# Eager, checkpointed, and by every backend


@both_types
@every_batch
@pytest.mark.parametrize("backend", ["auto", "sdpa", "banded", "reference"])
def test_eager(kind: str, dtype: torch.dtype, backend: str):
    assert_same(outcome(small_gpt(dtype, backend=backend), BATCHES[kind]()), measure(kind, dtype))


@both_types
def test_packed_when_only_the_device_knows_the_ends(dtype: torch.dtype):
    assert_same(outcome(small_gpt(dtype), packed_batch(known=False)), measure("packed", dtype))


@both_types
@every_batch
def test_checkpointing(kind: str, dtype: torch.dtype):
    model = small_gpt(dtype)
    model.checkpointing = True
    entered = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda block, _: entered.append(block))
    assert_same(outcome(model, BATCHES[kind]()), measure(kind, dtype))
    assert len(entered) == 2 * len(model.blocks), "every block is computed twice, or nothing was checkpointed"


@both_types
def test_checkpointing_draws_the_same_dropout_again(dtype: torch.dtype):
    model, batch, results = small_gpt(dtype, dropout=0.2), padded_batch(), []
    for checkpointing in (False, True):
        model.checkpointing = checkpointing
        torch.manual_seed(4)
        results.append(outcome(model, batch))
    assert_same(results[1], results[0])
    assert far(results[0].loss, measure("padded", dtype).loss) > 1e-3, "something was dropped"


@both_types
def test_grouped_heads_equal_repeated_ones(dtype: torch.dtype):
    """A model whose key/value heads are written out, one per query head; its gradients add up over each group."""
    grouped, batch = small_gpt(dtype), padded_batch()
    repeated = small_gpt(dtype, kv_heads=None)
    heads, groups = grouped.config.heads, grouped.config.kv_heads or 0
    sizes = [n * grouped.config.width // heads for n in (heads, groups, groups)]
    assert groups < heads
    weights = grouped.state_dict()
    for name in [name for name in weights if name.endswith("qkv.weight")]:
        q, k, v = weights[name].split(sizes)
        k, v = (x.unflatten(0, (groups, -1)).repeat_interleave(heads // groups, 0).flatten(0, 1) for x in (k, v))
        weights[name] = torch.cat((q, k, v))
    repeated.load_state_dict(weights)
    result = outcome(repeated, batch)
    for name in [name for name in result.gradients if name.endswith("qkv.weight")]:
        q, k, v = result.gradients[name].chunk(3)
        k, v = (x.unflatten(0, (groups, heads // groups, -1)).sum(1).flatten(0, 1) for x in (k, v))
        result.gradients[name] = torch.cat((q, k, v))
    assert_same(outcome(grouped, batch), result)


# Compiled and exported


@pytest.fixture
def compiler() -> Iterator[None]:
    """An empty compiler. Loading its parts calls a function of PyTorch's that PyTorch itself has deprecated."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.script_method` is deprecated", DeprecationWarning)
        yield
    torch.compiler.reset()


compiles = pytest.mark.usefixtures("compiler")


def check_compiled(kind: str, dtype: torch.dtype, checkpointing: bool, backend: str) -> None:
    """No graph break, the same numbers, and another batch of the same shape runs on the same code."""
    model, batch = small_gpt(dtype), BATCHES[kind]()
    model.checkpointing = checkpointing
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_same(outcome(model, batch, compiled), measure(kind, dtype))
    other = batch._replace(tokens=batch.tokens.flip(0, 1))
    if kind == "padded":
        other = padded_batch((3, 32, 17, 30))  # other lengths too; other documents: test_compiled_packing_that_changes
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(outcome(model, other, compiled), alone(model, other))


@compiles
def test_compiled():
    check_compiled("plain", COMPILED[0], checkpointing=False, backend="inductor")


@compiles
@pytest.mark.parametrize(("kind", "checkpointing"), [("plain", True), ("padded", False), ("packed", False)])
def test_traced_whole(kind: str, checkpointing: bool):
    """All of the compiler but its last stage, which writes and builds the kernels and takes most of the time."""
    check_compiled(kind, torch.float64, checkpointing, backend="aot_eager")


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("dtype", COMPILED, ids=str)
@every_batch
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_every_way(kind: str, dtype: torch.dtype, checkpointing: bool):
    check_compiled(kind, dtype, checkpointing, backend="inductor")


@compiles
def test_compiled_packing_that_changes():
    """Packed rows whose ends only the device knows: documents of other lengths run on the same code."""
    model = small_gpt(torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outcome(model, packed_batch(known=False), compiled)
    other = packed_batch(((4, 5, 6), (32,), (31, 1), (20, 3)), known=False)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(outcome(model, other, compiled), alone(model, other))


@compiles
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(plain_batch, id="plain", marks=pytest.mark.slow),
        pytest.param(lambda length: padded_batch((length, 3), length), id="padded"),
    ],
)
def test_compiled_for_any_length(make):
    """The second length makes the compiler keep lengths open; every later one runs on that code."""
    model = small_gpt(torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (32, 24):
        assert_same(outcome(model, make(length=length), compiled), alone(model, make(length=length)))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(outcome(model, make(length=150), compiled), alone(model, make(length=150)))


@both_types
def test_exported(dtype: torch.dtype):
    batch = plain_batch()
    program = export(small_gpt(dtype), (batch.tokens,)).module()
    assert_same(outcome(program, batch, lambda tokens, _: program(tokens)), measure("plain", dtype))


def test_exported_for_any_batch_and_length():
    model, shapes = small_gpt(torch.float64), {"tokens": {0: Dim.AUTO, 1: Dim.AUTO}}
    program = export(model, (plain_batch().tokens,), dynamic_shapes=shapes).module()
    for other in (plain_batch(), plain_batch(count=7, length=21), plain_batch(count=1, length=200)):
        assert_same(outcome(program, other, lambda tokens, _: program(tokens)), alone(model, other))


def test_exported_with_padding():
    model, rows, batch = small_gpt(torch.float64), Dim("rows"), padded_batch()
    given = (batch.tokens, torch.tensor([n for _, _, n in batch.places]))
    program = export(FromLengths(model), given, dynamic_shapes={"tokens": {0: rows}, "lengths": {0: rows}}).module()
    for other in (batch, padded_batch((9, 32))):
        logits = program(other.tokens, torch.tensor([n for _, _, n in other.places]))
        for (row, _, n), expected in zip(other.places, alone(model, other).logits, strict=True):
            assert far(logits[row, :n], expected) < TOLERANCE[torch.float64]


# On two ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two real processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(Path(__file__).with_name("fsdp_worker.py"), 2, folder, options=("-W", "error"))
    return folder


@both_types
@pytest.mark.parametrize(("kind", "way"), [(kind, "whole") for kind in BATCHES] + [("padded", way) for way in WAYS[1:]])
def test_sharded(ranks: Path, kind: str, way: str, dtype: torch.dtype):
    """Rank r holds rows r, r+2, ...: losses and gradients summed over the ranks are those of the whole batch."""
    name = f"{kind}-{way}-{dtype}"
    parts = [iter(sorted(load_file(ranks / f"{name}-rank{rank}").items())) for rank in range(2)]
    logits = [next(parts[row % 2])[1] for row, _, _ in BATCHES[kind]().places]
    gradients = load_file(ranks / name)
    assert_same(Outcome(logits, gradients.pop("loss"), gradients), measure(kind, dtype))


# Step by step


@both_types
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("lengths", [(24, 24, 24), (24, 13, 2)], ids=["even", "ragged"])
def test_prefill_and_steps(dtype: torch.dtype, lengths: tuple[int, ...], fixed: bool):
    assert check_steps(small_gpt(dtype), lengths, (10, *[1] * 9, 5), fixed) == [24]


@both_types
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("lengths", [(60, 60), (60, 41, 7)], ids=["even", "ragged"])
@pytest.mark.parametrize("global_every", [0, 2])
def test_rolling_cache(dtype: torch.dtype, lengths: tuple[int, ...], global_every: int, fixed: bool):
    """A window of 6 over 60 tokens: the buffer is overwritten again and again, by prefill, steps and long pieces."""
    model = small_gpt(dtype, attention=WindowConfig(6), global_every=global_every)
    sizes = check_steps(model, lengths, (25, *[1] * 10, 20, 5), fixed)
    assert min(sizes) < 25, "the buffer rolls"
    assert sizes[1:] == ([60] if global_every else [])


@both_types
@every_batch
def test_window(kind: str, dtype: torch.dtype):
    """The texts alone, through the definition, against the batch through the fast path."""
    batch, changes = BATCHES[kind](), {"attention": WindowConfig(6), "global_every": 2}
    expected = alone(small_gpt(dtype, backend="reference", **changes), batch)
    assert_same(outcome(small_gpt(dtype, **changes), batch), expected)


# Without a dense mask


LONG = 768
LONG_BATCHES = {
    "padded": lambda: padded_batch((768, 300, 1), LONG),
    "packed": lambda: packed_batch(((700, 60), (300, 400, 68), (768,)), LONG),
}
every_long_batch = pytest.mark.parametrize("kind", LONG_BATCHES)


@every_long_batch
@both_types
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("attention", "backend"), [(SoftmaxConfig(), "sdpa"), (WindowConfig(32), "banded")])
def test_no_dense_mask(kind: str, dtype: torch.dtype, attention: AttentionConfig, backend: str, checkpointing: bool):
    """The plan names the fast path and holds nothing large; neither direction makes anything as large as one N x N."""
    model, batch = small_gpt(dtype, attention=attention), LONG_BATCHES[kind]()
    model.checkpointing = checkpointing
    plans = watch_plans(model)
    with Tensors() as seen:
        outcome(model, batch)
    assert {plan.backend for plan in plans} == {backend}
    assert sum(held.numel() for plan in plans[:1] for held in tensors_in(plan.prepared)) < LONG**2
    assert seen.largest < LONG**2, seen.maker
    assert seen.ran["_scaled_dot_product_flash_attention_for_cpu"] >= len(model.blocks)
    assert not seen.ran["_softmax"]


@every_long_batch
def test_the_watch_sees_a_dense_mask(kind: str):
    batch = LONG_BATCHES[kind]()
    with Tensors() as seen:
        outcome(small_gpt(torch.float32, backend="reference"), batch)
    assert seen.largest >= len(batch.tokens) * LONG**2
    assert seen.ran["_softmax"]
