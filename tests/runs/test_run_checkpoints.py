"""Saving, loading, pruning, and noticing damage."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.errors import UserError
from regard.runs import Checkpoint, Run

FILES = ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def save(run: Run, step: int, **options: Any) -> Path:
    at = float(step)
    return run.save(step, {"w": torch.full((3, 4), at)}, {"m": torch.full((5,), -at)}, {"position": step}, **options)


def same(a: Tensor, b: Tensor) -> bool:
    # the bits, not the values: NaN must come back as it was
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().numpy().tobytes() == b.numpy().tobytes()


def loads_as(found: Checkpoint | None, step: int) -> bool:
    assert found is not None
    return (
        found.step == step
        and same(found.model()["w"], torch.full((3, 4), float(step)))
        and same(found.optimizer()["m"], torch.full((5,), -float(step)))
        and found.state == {"position": step}
    )


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


def test_a_damaged_one_does_not_count_among_those_kept(run: Run):
    for step in (100, 200):
        save(run, step)
    (run.path / "checkpoints" / "step-000200" / "state.json").write_text("{}")
    save(run, 300)
    assert run.steps() == [100, 300]


def test_a_step_can_be_saved_again(run: Run):
    save(run, 5)
    path = run.save(5, {"w": torch.ones(1)}, {}, {"finished": True})
    assert path.name == "step-000005"
    found = run.latest()
    assert found is not None
    assert found.state == {"finished": True}
    assert [entry.name for entry in path.parent.iterdir()] == ["step-000005"]


def test_of_two_attempts_at_a_step_the_later_whole_one_is_taken(run: Run):
    # the folders as a process killed while it replaced a checkpoint leaves them
    second = save(run, 5)
    second = second.rename(second.with_name("aside"))
    first = run.save(5, {"w": torch.zeros(1)}, {}, {"attempt": 1})
    second = second.rename(first.with_name("step-000005.1"))
    assert loads_as(run.latest(), 5)
    (second / "MANIFEST.json").unlink()
    found = run.latest()
    assert found is not None
    assert found.path == first
    assert run.damaged == ["checkpoint step-000005.1 is damaged: MANIFEST.json is missing"]
    save(run, 5)
    assert loads_as(run.latest(), 5)
    assert [entry.name for entry in first.parent.iterdir()] == ["step-000005"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "longer", "empty", "flipped", "a folder"])
def test_damage_is_noticed_and_the_one_before_taken(run: Run, name: str, damage: str):
    save(run, 1)
    file = save(run, 2) / name
    data = file.read_bytes()
    file.unlink()
    if damage == "truncated":
        file.write_bytes(data[:-1])
    elif damage == "longer":
        file.write_bytes(data + b"x")
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "flipped":
        file.write_bytes(data[:10] + bytes([data[10] ^ 1]) + data[11:])
    elif damage == "a folder":
        file.mkdir()
    assert loads_as(run.latest(), 1)
    assert len(run.damaged) == 1
    assert "step-000002 is damaged" in run.damaged[0]
    assert name in run.damaged[0]
    with pytest.raises(UserError, match=r"step-000002 is damaged.*there are: 1, 2"):
        run.checkpoint(2)


@given(data=st.data())
def test_any_flipped_bit_is_noticed_or_changes_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    run = Run.create(tmp_path_factory.mktemp("flip"), None, "", {})
    file = save(run, 2) / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    found = run.latest()
    # only white space between the manifest's words can change without a trace
    assert found is None or (file.name == "MANIFEST.json" and loads_as(found, 2))


def test_a_checkpoint_under_another_steps_name_is_noticed(run: Run):
    path = save(run, 2)
    path.rename(path.with_name("step-000009"))
    assert run.latest() is None
    assert run.damaged == ["checkpoint step-000009 is damaged: MANIFEST.json is of step 2"]


def test_a_manifest_that_points_elsewhere_is_not_followed(run: Run):
    path = save(run, 2)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["files"]["../../config.toml"] = manifest["files"].pop("state.json")
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    assert run.latest() is None
    assert "does not list exactly" in run.damaged[0]


def test_other_files_are_left_alone(run: Run):
    checkpoints = run.path / "checkpoints"
    for name in ("notes", "step-12", "step-000001.bak"):
        (checkpoints / name).mkdir()
    (checkpoints / ".DS_Store").touch()
    for step in (1, 2, 3):
        save(run, step, keep=1)
    assert run.steps() == [3]
    assert {"notes", "step-12", "step-000001.bak", ".DS_Store"} < {path.name for path in checkpoints.iterdir()}


def test_a_foreign_tensor_file_is_refused_and_pickle_is_never_read(run: Run, tmp_path: Path):
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (trap,))

    path = save(run, 1)
    torch.save({"w": Trap()}, path / "model.safetensors")
    assert run.latest() is None
    with pytest.raises(UserError, match="not a tensor file"):
        Checkpoint(1, path, {}).model()
    assert not trap.exists()


def test_a_missing_step_is_named(run: Run):
    with pytest.raises(UserError, match=r"no checkpoint of step 7; choose another step .there are: none"):
        run.checkpoint(7)
    with pytest.raises(ValueError, match=">= 0"):
        save(run, -1)
