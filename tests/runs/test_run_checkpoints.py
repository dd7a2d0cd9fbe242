"""Saving, loading and pruning checkpoints."""

import json

import pytest
import torch
from checkpoint_kit import FILES, loads_as, same, save
from torch import nn

from regard.errors import UserError
from regard.runs import Run


def test_what_is_saved_is_loaded(run: Run):
    path = save(run, 500)
    assert path == run.path / "checkpoints" / "step-000500"
    assert sorted(file.name for file in path.iterdir()) == FILES
    found = Run.open(run.path).latest()
    assert loads_as(found, 500)
    assert found is not None
    assert found.path == path


def test_the_manifest_is_what_an_outsider_would_compute(run: Run):
    import hashlib

    path = save(run, 1_234_567)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["step"] == 1_234_567
    for name in FILES[1:]:
        data = (path / name).read_bytes()
        assert manifest["files"][name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_tensors_of_every_kind_come_back_bit_for_bit(run: Run):
    base = torch.randn(6, 8)
    tensors = {
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "other empty": torch.zeros(0),
        "transposed": base.T,
        "expanded": torch.ones(1).expand(3, 2),
        "first half": base[:3],
        "second half": base[3:],
        "strided": base[:, ::2],
        "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "bool": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "double": torch.randn(3, dtype=torch.float64),
        "parameter": nn.Parameter(torch.randn(2)),
        "": torch.ones(1),
        "ünïcode\n": torch.ones(2),
    }
    run.save(1, tensors, {}, {})
    found = run.latest()
    assert found is not None
    loaded = found.model()
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert same(tensor.detach(), loaded[name]), name
    for dtype in (torch.bfloat16, torch.float16):
        run.save(2, {"x": base.to(dtype)}, {}, {})
        found = run.latest()
        assert found is not None
        assert torch.equal(found.model()["x"], base.to(dtype))
        assert found.model()["x"].dtype == dtype


def test_tied_tensors_are_written_once_and_stay_tied(run: Run):
    model = nn.ModuleDict({"embed": nn.Embedding(1000, 8), "head": nn.Linear(8, 1000, bias=False)})
    model["head"].weight = model["embed"].weight
    path = run.save(1, model.state_dict(), {"t": torch.zeros(4, 4).T, "u": torch.zeros(1)}, {})
    assert (path / "model.safetensors").stat().st_size < 1.5 * 1000 * 8 * 4
    found = run.latest()
    assert found is not None
    loaded = found.model()
    assert loaded.keys() == {"embed.weight", "head.weight"}
    assert loaded["embed.weight"] is loaded["head.weight"]
    model.load_state_dict(loaded)


def test_same_memory_read_otherwise_is_not_tied(run: Run):
    x = torch.arange(9.0).reshape(3, 3)
    run.save(1, {"x": x, "transposed": x.T, "flat": x.reshape(9), "as int": x.view(torch.int32)}, {}, {})
    found = run.latest()
    assert found is not None
    loaded = found.model()
    assert torch.equal(loaded["x"], x)
    assert torch.equal(loaded["transposed"], x.T)
    assert torch.equal(loaded["flat"], x.reshape(9))
    assert torch.equal(loaded["as int"], x.view(torch.int32))
    loaded["x"].zero_()
    assert torch.equal(loaded["flat"], x.reshape(9))


def test_loaded_tensors_do_not_depend_on_the_file(run: Run):
    path = run.save(1, {str(size): torch.ones(size) for size in (1, 3, 5, 7)}, {}, {})
    found = run.latest()
    assert found is not None
    loaded = found.model()
    assert all(tensor.data_ptr() % 64 == 0 for tensor in loaded.values())  # mapped ones lie anywhere
    (path / "model.safetensors").write_bytes(b"")  # were they mapped, this would kill us with SIGBUS
    assert all(bool((tensor == 1).all()) for tensor in loaded.values())


def test_only_tensors_are_saved_as_tensors(run: Run):
    with pytest.raises(TypeError, match="lr is a float"):
        run.save(1, {}, {"lr": 0.1}, {})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="meta"):
        run.save(1, {"w": torch.empty(3, device="meta")}, {}, {})
    assert list((run.path / "checkpoints").iterdir()) == []


def test_state_is_strict_json(run: Run):
    state = {"rng": (1, (2**127, None)), "text": "é", "deep": {"rate": 0.1 + 0.2, "done": False}}
    run.save(1, {}, {}, state)
    found = run.latest()
    assert found is not None
    assert found.state == {
        "rng": [1, [2**127, None]],
        "text": "é",
        "deep": {"rate": 0.1 + 0.2, "done": False},
    }
    for bad, said in [
        ({"best": float("inf")}, "inf"),
        ({"a": object()}, "state.a"),
        ({"d": {1: 2}}, "state.d"),
    ]:
        with pytest.raises((ValueError, TypeError), match=said):
            run.save(2, {}, {}, bad)
    assert run.steps() == [1]


def test_older_ones_are_pruned_but_not_the_pinned(run: Run):
    for step in range(1, 7):
        save(run, step, pinned=[2])
    assert run.steps() == [2, 5, 6]
    save(run, 7, keep=1)
    assert run.steps() == [7]
    for step in (8, 9, 10):
        save(run, step, keep=3)
    assert run.steps() == [8, 9, 10]
    assert loads_as(run.latest(), 10)
    assert loads_as(run.checkpoint(8), 8)
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == [
        "step-000008",
        "step-000009",
        "step-000010",
    ]
    with pytest.raises(ValueError, match="keep"):
        save(run, 11, keep=0)
    assert run.steps() == [8, 9, 10]


def test_newest_is_by_number_not_by_spelling(run: Run):
    for step in (999_998, 999_999, 1_000_000):
        save(run, step)
    assert run.steps() == [999_999, 1_000_000]
    assert loads_as(run.latest(), 1_000_000)


def test_saving_after_a_rewind_keeps_what_was_just_saved(run: Run):
    for step in (100, 200, 300):
        save(run, step, keep=3)
    (run.path / "checkpoints" / "step-000300" / "model.safetensors").unlink()
    assert loads_as(run.latest(), 200)
    save(run, 250, keep=1)
    assert loads_as(run.latest(), 250)
    save(run, 300, keep=1)
    assert loads_as(run.latest(), 300)
    assert run.damaged == []
    assert run.steps() == [300]


def test_checkpoints_past_the_saved_one_are_neither_counted_nor_removed(run: Run):
    for step in (100, 300, 200):
        save(run, step, keep=1)
    assert run.steps() == [200, 300]


def test_a_step_can_be_saved_again(run: Run):
    save(run, 5)
    path = run.save(5, {"w": torch.ones(1)}, {}, {"finished": True})
    assert path.name == "step-000005"
    found = run.latest()
    assert found is not None
    assert found.state == {"finished": True}
    assert [entry.name for entry in path.parent.iterdir()] == ["step-000005"]


def test_a_missing_step_is_named(run: Run):
    with pytest.raises(UserError, match=r"no checkpoint of step 7; choose another step .there are: none"):
        run.checkpoint(7)
    with pytest.raises(ValueError, match=">= 0"):
        save(run, -1)
