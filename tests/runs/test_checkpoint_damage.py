"""Damaged checkpoints are noticed, and the one before is taken."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import FILES, loads_as, save
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.runs import Checkpoint, Run


def test_a_damaged_one_does_not_count_among_those_kept(run: Run):
    for step in (100, 200):
        save(run, step)
    (run.path / "checkpoints" / "step-000200" / "state.json").write_text("{}")
    save(run, 300)
    assert run.steps() == [100, 300]


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
