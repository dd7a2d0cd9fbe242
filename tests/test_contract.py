"""The contract carries: one small GPT, the same weights and the same texts, driven every way there is.

Every way is held to the same measure, ``alone``: each text by itself, in a batch of one, in eager mode. Logits, the summed
loss and the gradient of every parameter agree to 1e-10 in float64 and 1e-5 in float32 (of the tensor's greatest element,
where that is above 1). ``contract_model.py`` holds the model and the batches, ``fsdp_worker.py`` is one rank of two.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from contract_model import (
    BATCHES,
    TOLERANCE,
    Outcome,
    alone,
    assert_same,
    far,
    outcome,
    packed_batch,
    padded_batch,
    plain_batch,
    small_gpt,
)
from contract_watch import Tensors, tensors_in, watch_plans
from fsdp_worker import WAYS
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import Dim, export

from regard.attend import Padded
from regard.models.gpt import GPT

both_types = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_batch = pytest.mark.parametrize("kind", BATCHES)
# Importing the compiler's own libraries runs `torch.jit.script_method`, which PyTorch itself has deprecated.
quiet_compiler = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@cache
def measure(kind: str, dtype: torch.dtype) -> Outcome:
    return alone(small_gpt(dtype), BATCHES[kind]())


# Eager, checkpointed, and by every backend


@both_types
@every_batch
@pytest.mark.parametrize("backend", ["auto", "banded", "reference"])
def test_eager(kind: str, dtype: torch.dtype, backend: str):
    assert_same(outcome(small_gpt(dtype, backend=backend), BATCHES[kind]()), measure(kind, dtype))


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
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check_compiled(kind: str, dtype: torch.dtype, checkpointing: bool, backend: str) -> None:
    """No graph break, the same numbers, and another batch of the same shape runs on the same code."""
    model, batch = small_gpt(dtype), BATCHES[kind]()
    model.checkpointing = checkpointing
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_same(outcome(model, batch, compiled), measure(kind, dtype))
    others = {
        "plain": lambda: plain_batch(seed=7),
        "padded": lambda: padded_batch((3, 32, 17, 30), seed=7),
        "packed": packed_batch,  # where documents end is part of the code: see test_compiled_packing_that_changes
    }
    with torch.compiler.set_stance("fail_on_recompile"):
        again = outcome(model, others[kind](), compiled)
    assert_same(again, alone(model, others[kind]()))


@quiet_compiler
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled():
    check_compiled("plain", torch.float64, checkpointing=False, backend="inductor")


@quiet_compiler
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("kind", "checkpointing"), [("plain", True), ("padded", False), ("packed", False)])
def test_traced_whole(kind: str, checkpointing: bool):
    """All of the compiler but its last stage, which writes and builds the kernels and takes most of the time."""
    check_compiled(kind, torch.float64, checkpointing, backend="aot_eager")


@pytest.mark.slow
@quiet_compiler
@pytest.mark.usefixtures("fresh_compiler")
@both_types
@every_batch
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_every_way(kind: str, dtype: torch.dtype, checkpointing: bool):
    check_compiled(kind, dtype, checkpointing, backend="inductor")


@pytest.mark.slow
@quiet_compiler
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_packing_that_changes():
    """Packed rows whose ends only the device knows: documents of other lengths run on the same code."""
    model = small_gpt(torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outcome(model, packed_batch(known=False), compiled)
    other = packed_batch(((4, 5, 6), (32,), (31, 1), (20, 3)), known=False)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(outcome(model, other, compiled), alone(model, other))


@pytest.mark.slow
@quiet_compiler
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "make", [plain_batch, lambda length: padded_batch((length, 3), length)], ids=["plain", "padded"]
)
def test_compiled_for_any_length(make):
    """The second length makes the compiler keep lengths open; every later one runs on that code."""
    model = small_gpt(torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (32, 24):
        assert_same(outcome(model, make(length=length), compiled), alone(model, make(length=length)))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(outcome(model, make(length=17), compiled), alone(model, make(length=17)))


@both_types
def test_exported(dtype: torch.dtype):
    batch = plain_batch()
    program = export(small_gpt(dtype), (batch.tokens,)).module()
    assert_same(outcome(program, batch, lambda tokens, _: program(tokens)), measure("plain", dtype))


def test_exported_for_any_batch_and_length():
    model, rows, length = small_gpt(torch.float64), Dim("rows"), Dim("length", min=2, max=4096)
    program = export(model, (plain_batch().tokens,), dynamic_shapes={"tokens": {0: rows, 1: length}}).module()
    for other in (plain_batch(), plain_batch(count=7, length=21), plain_batch(count=1, length=50)):
        assert_same(outcome(program, other, lambda tokens, _: program(tokens)), alone(model, other))


class FromLengths(nn.Module):
    """What one would export to serve padded batches: slots are made inside, tensors alone cross the boundary."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.model(tokens, Padded(lengths, tokens.shape[1]))


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
    """Two real processes over gloo go through every batch; what they wrote."""
    folder, worker = tmp_path_factory.mktemp("ranks"), Path(__file__).with_name("fsdp_worker.py")
    commands = [[sys.executable, "-W", "error", str(worker), str(rank), "2", str(folder)] for rank in range(2)]
    started = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        said = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return folder


@both_types
@pytest.mark.parametrize(("kind", "way"), [(kind, "whole") for kind in BATCHES] + [("padded", way) for way in WAYS[1:]])
def test_sharded(ranks: Path, kind: str, way: str, dtype: torch.dtype):
    """Rank r holds rows r, r+2, ...: losses and gradients summed over the ranks are those of the whole batch."""
    name = f"{kind}-{way}-{dtype}"
    parts = [iter(load_file(ranks / f"{name}-rank{rank}").items()) for rank in range(2)]
    logits = [next(parts[row % 2])[1] for row, _, _ in BATCHES[kind]().places]
    gradients = load_file(ranks / name)
    assert_same(Outcome(logits, gradients.pop("loss"), gradients), measure(kind, dtype))


# Step by step


def check_steps(model: GPT, lengths: tuple[int, ...], pieces: tuple[int, ...], fixed: bool = False) -> list[int]:
    """Feed ragged texts in ``pieces`` (columns at a time); every logit is that of the text alone. Gives cache sizes."""
    batch = padded_batch(lengths, length=sum(pieces))
    state = model.start(len(lengths), capacity=sum(pieces), fixed=fixed)
    left, start, parts = torch.tensor(lengths), 0, []
    for piece in pieces:
        real = None if len(set(lengths)) == 1 else left.clamp(0, piece)
        logits, state = model.step(batch.tokens[:, start : start + piece], state, real)
        parts.append(logits)
        left, start = left - piece, start + piece
    every = torch.cat(parts, dim=1)
    for (row, _, n), expected in zip(batch.places, alone(model, batch).logits, strict=True):
        assert far(every[row, :n], expected) < TOLERANCE[expected.dtype]
    return [memory.size for memory in state.memories]


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
    model = small_gpt(dtype, window=6, global_every=global_every)
    sizes = check_steps(model, lengths, (25, *[1] * 10, 20, 5), fixed)
    assert min(sizes) < 25, "the buffer rolls"
    assert sizes[1:] == ([60] if global_every else [])


@both_types
@every_batch
def test_window(kind: str, dtype: torch.dtype):
    """The texts alone, through the definition, against the batch through the fast path."""
    batch, changes = BATCHES[kind](), {"window": 6, "global_every": 2}
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
@pytest.mark.parametrize(("window", "backend"), [(None, "sdpa"), (32, "banded")])
def test_no_dense_mask(kind: str, dtype: torch.dtype, window: int | None, backend: str, checkpointing: bool):
    """The plan names the fast path and holds nothing large; in both directions nothing made is as large as one N x N."""
    model, batch = small_gpt(dtype, window=window), LONG_BATCHES[kind]()
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
