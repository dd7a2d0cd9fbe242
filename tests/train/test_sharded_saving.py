"""Checkpoints of several ranks: each element once, read whole or in pieces; damage and full disks are named."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from piece_kit import SHARED, WIDTH, cuts, held, loads, on_threads, save, whole
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import UserError
from regard.parallel.pieces import fill
from regard.runs import Run
from regard.runs.shards import MODEL
from regard.train import shards
from regard.train.shards import assign, listed, own_pieces


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "run", "", {})


def save_all(run: Run, step: int, ranks: int = 4, **options: Any) -> list[Any]:
    results = on_threads(ranks, lambda rank, exchange: save(run, step, rank, ranks, exchange, **options))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def files(run: Run) -> set[str]:
    return {path.name for path in (run.path / "checkpoints").iterdir()}


def test_what_ranks_save_is_read_whole_and_by_any_ranks(run: Run):
    save_all(run, 3)
    assert loads(run, 3)
    found = run.checkpoint(3)
    loaded = found.model()
    assert loaded["head"] is loaded["embed"]
    assert found.shapes() == {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    for ranks in (1, 2, 3, 6):
        for rank in range(ranks):
            own = cuts(rank, ranks)
            with found.opened(MODEL) as stored:
                for name, tensor in held(3, rank, ranks)[0][MODEL].items():
                    target = torch.full_like(tensor, -1)
                    fill(target, stored[name], own.get(name))
                    assert torch.equal(target, tensor), (name, rank, ranks)


def test_each_element_is_written_once_and_the_ranks_share_the_work(run: Run):
    split, *others = save_all(run, 1)
    assert all(other == split for other in others)
    sizes = split.sizes()
    assert sum(sizes.values()) == sum(tensor.nbytes for named in whole(1).values() for tensor in named.values())
    by_rank = [sum(size for name, size in sizes.items() if f"-0000{rank + 1}-" in name) for rank in range(4)]
    assert max(by_rank) - min(by_rank) <= max(tensor.nbytes for tensor in whole(1)[MODEL].values())
    assert files(run) == {"step-000001"}


def test_ranks_with_other_tensors_are_refused():
    lists = [listed(*held(1, rank, 2)) for rank in range(2)]
    lists[1][MODEL]["norm"] = lists[1][MODEL]["norm"]._replace(shape=(8,))
    with pytest.raises(ValueError, match="'norm' is another tensor on rank 0 than on rank 1"):
        assign(lists, SHARED)
    lists = [listed(*held(1, rank, 2)) for rank in range(2)]
    lists[1][MODEL]["qkv"] = lists[1][MODEL]["qkv"]._replace(boxes=lists[0][MODEL]["qkv"].boxes)
    with pytest.raises(ValueError, match="pieces of 'qkv' overlap, or some are missing"):
        assign(lists, SHARED)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "optimizer-00001-of-00002.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "a link"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_taken(run: Run, name: str, damage: str, tmp_path: Path):
    save_all(run, 1, ranks=2)
    save_all(run, 2, ranks=2)
    path = run.path / "checkpoints" / "step-000002" / name
    data = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "a link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    assert loads(run, 1)
    assert name in run.damaged[0]
    noticed = run.examine_checkpoints(thorough=damage == "flipped")
    assert len(noticed) == 1
    assert "step-000002" in noticed[0]
    save_all(run, 3, ranks=2)
    assert run.steps() == ([2, 3] if damage == "flipped" else [1, 3])  # one of a wrong size does not count


def test_a_manifest_cannot_promise_more_than_its_files_have(run: Run):
    save_all(run, 1, ranks=1)
    path = run.path / "checkpoints" / "step-000001" / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest["tensors"]["model"]["norm"] |= {"shape": [2**40], "pieces": [[0, [0], [2**40]]]}
    path.write_text(json.dumps(manifest))
    assert run.latest() is None
    assert "model-00001-of-00001.safetensors is smaller than its pieces" in run.damaged[0]
    manifest["tensors"]["model"]["norm"] |= {"shape": [6], "pieces": [[0, [0], [6]]]}
    path.write_text(json.dumps(manifest))
    found = run.latest()
    assert found is not None
    with pytest.raises(UserError, match="'norm@0' has another shape or dtype than the manifest says"):
        found.model()
    for schema, said in ((3, "schema 3, this version reads 1 and 2"), (True, "schema True")):
        path.write_text(json.dumps(manifest | {"schema": schema}))
        assert run.latest() is None
        assert said in run.damaged[0]
    path.write_text(json.dumps(manifest | {"files": manifest["files"] | {"../../config.toml": {}}}))
    assert run.latest() is None
    assert "does not list exactly state.json and two files of each of 1 ranks" in run.damaged[0]


@pytest.mark.parametrize("broken", [0, 2])
@pytest.mark.parametrize("where", ["write_pieces", "finish"])
def test_a_full_disk_of_one_rank_fails_all(run: Run, broken: int, where: str, monkeypatch: pytest.MonkeyPatch):
    save_all(run, 1)
    full = OSError(28, "No space left on device")
    if where == "finish":
        broken = 0  # only rank 0 does

        def fails(*_: Any) -> None:
            raise full

        monkeypatch.setattr("regard.runs.checkpoint.sync", fails)
    else:
        real = shards.write_pieces

        def sometimes(path: Path, pieces: Any) -> Any:
            if path.name.startswith(f"optimizer-0000{broken + 1}"):
                raise full
            return real(path, pieces)

        monkeypatch.setattr(shards, "write_pieces", sometimes)
    results = on_threads(4, lambda rank, exchange: save(run, 2, rank, 4, exchange))
    assert all(isinstance(result, UserError) for result in results)
    for rank, result in enumerate(results):
        assert f"{'' if rank == broken else f'rank {broken}: '}cannot write the checkpoint of step 2" in str(result)
        assert "the disk is full" in str(result)
    assert files(run) == {"step-000001"}
    assert loads(run, 1)


def test_ranks_without_a_common_folder_are_told_so(run: Run, tmp_path: Path):
    others = [run, Run.create(tmp_path, "elsewhere", "", {})]
    results = on_threads(2, lambda rank, exchange: save(others[rank], 1, rank, 2, exchange))
    assert "give every rank the same folder of runs, on a shared file system" in str(results[1])
    assert str(results[0]).startswith("rank 1: ")
    assert files(run) == files(others[1]) == set()


class LiveBytes(TorchDispatchMode):
    """The most bytes of new tensors that are alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in args if isinstance(one, torch.Tensor)}
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            if storage._cdata not in given and storage._cdata not in self._seen:
                key, size = storage._cdata, storage.nbytes()
                self._seen.add(key)
                self.live += size
                self.most = max(self.most, self.live)
                weakref.finalize(result, self._gone, key, size)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


@pytest.mark.parametrize("rank", [0, 1])
def test_saving_takes_memory_for_one_tensor_besides_the_shards(rank: int, tmp_path: Path):
    """The pieces of a cut along the columns are not contiguous, so that each is copied, as those of a GPU are."""
    tensors, own = held(1, rank, 2)
    split = assign([listed(*held(1, other, 2)) for other in range(2)], SHARED)
    pieces = dict(own_pieces(split, rank, tensors, own).pieces[MODEL])
    pieces |= {f"copy {n}": torch.randn(64, 64).T for n in range(8)}
    largest = max(piece.nbytes for piece in pieces.values())
    with LiveBytes() as memory:
        shards.write_pieces(tmp_path / "pieces", pieces)
    assert 0 < memory.most <= largest


def test_reading_one_rank_s_pieces_takes_memory_for_one_of_them(run: Run):
    save_all(run, 1, ranks=2)
    own = cuts(1, 4)
    with run.checkpoint(1).opened(MODEL) as stored, LiveBytes() as memory:
        target = torch.empty(3 * WIDTH // 4, 5)
        fill(target, stored["qkv"], own["qkv"])
    assert memory.most <= target.nbytes + 2 * target.nbytes / 3


def test_a_rank_that_dies_anywhere_in_a_save_leaves_a_whole_checkpoint(run: Run):
    program = str(Path(__file__).with_name("killed_shard_savers.py"))
    done = subprocess.run([sys.executable, program, str(run.path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["rounds"] > 20
    assert min(counts["old"], counts["new"]) > 1
