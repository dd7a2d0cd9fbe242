"""The next-token loss: sums and counts, chunked exactly, and traceable."""

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from regard.data import TextBatch
from regard.models import GPTConfig
from regard.tasks import LanguageConfig, LanguageTask, Task

TINY = GPTConfig(vocabulary=37, context=8, layers=1, heads=2, width=16, zero_init=False)


def _batch(rows: int = 5, seed: int = 0) -> TextBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(TINY.vocabulary, (rows, 9), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[0, 3:] = -1  # a short row
    targets[2] = -1  # a row that does not count at all
    return TextBatch(tokens[:, :-1], targets)


def _model(dtype: torch.dtype = torch.float32, **changes):
    torch.manual_seed(1)
    from dataclasses import replace

    return replace(TINY, **changes).build().to(dtype)


def _plain(model, batch: TextBatch) -> torch.Tensor:
    logits = model(batch.inputs).double()
    picked = logits.log_softmax(-1).gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    return -(picked * (batch.targets >= 0)).sum()


def test_the_term_is_a_sum_over_the_targets_that_count():
    model, batch, task = _model(torch.float64), _batch(), LanguageTask()
    terms = task.terms(model, batch)
    assert list(terms) == ["next_token"]
    term = terms["next_token"]
    assert int(term.count) == 3 + 8 * 3
    assert (term.weight, term.additive) == (1.0, True)
    torch.testing.assert_close(term.total, _plain(model, batch), rtol=0, atol=1e-10)


def test_counts_are_known_from_the_batch_alone():
    task: Task = LanguageConfig().build()
    counts = task.counts(_batch())
    assert {name: int(count) for name, count in counts.items()} == {"next_token": 27}


def test_a_batch_without_targets_loses_nothing():
    model, batch = _model(), _batch()
    batch = batch._replace(targets=torch.full_like(batch.targets, -1))
    term = LanguageTask().terms(model, batch)["next_token"]
    assert (term.total.item(), int(term.count)) == (0.0, 0)
    term.total.backward()
    assert all(float(p.grad.abs().sum()) == 0 for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("limit", [1, 37 * 7, 37 * 39, 37 * 40])
@pytest.mark.parametrize("cap", [None, 5.0])
def test_chunks_equal_the_plain_loss_forward_and_backward(limit, cap):
    plain, chunked, batch = _model(cap=cap), _model(cap=cap), _batch()
    expected = _plain(plain, batch)
    expected.backward()
    total = LanguageTask(LanguageConfig(logits=limit)).terms(chunked, batch)["next_token"].total
    total.backward()
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0)
    for (name, a), b in zip(plain.named_parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-6, atol=1e-6, msg=name)


def test_chunks_never_hold_all_logits():
    """The largest tensor kept for backward, or made on the way, stays a chunk's."""
    model, batch = _model(), _batch(rows=40)  # 40 * 8 rows of 37 logits
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] == (37,):
                largest = max(largest, out.numel())
            return out

    def run(limit: int) -> int:
        nonlocal largest
        largest = 0
        with Watch():
            LanguageTask(LanguageConfig(logits=limit)).terms(model, batch)["next_token"].total.backward()
        return largest

    assert run(2**27) == 40 * 8 * 37
    assert run(37 * 16) <= 37 * 16


def test_log_softmax_is_float32_when_the_model_is_not():
    model, batch = _model(torch.bfloat16), _batch()
    term = LanguageTask().terms(model, batch)["next_token"]
    assert term.total.dtype == torch.float32
    logits = model(batch.inputs).float()
    expected = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-1, reduction="sum")
    torch.testing.assert_close(term.total, expected)


@pytest.mark.parametrize("limit", [2**27, 37 * 16])
def test_traces_as_one_graph(limit):
    model, batch = _model(torch.float64), _batch()
    task = LanguageTask(LanguageConfig(logits=limit))
    expected = task.terms(model, batch)["next_token"].total
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled = torch.compile(task.terms, fullgraph=True, dynamic=False, backend="aot_eager")
    total = compiled(model, batch)["next_token"].total
    total.backward()
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-10)
    for found, gradient in zip((p.grad for p in model.parameters() if p.grad is not None), gradients, strict=True):
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-10)
