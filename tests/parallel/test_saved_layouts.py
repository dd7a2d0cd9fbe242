"""What ranks in any layout save, ranks in another one load to the bit: 2 -> 4 -> 1."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layout_rank import write_text
from saving_rank import LAYOUTS, loaded, run_of, start_runs
from test_layouts import assembled
from torch import Tensor

from forked_ranks import run_ranks
from regard.parallel.world import World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two ranks have saved all models, and then four."""
    path = tmp_path_factory.mktemp("saved")
    write_text(path)
    start_runs(path)
    for size in LAYOUTS:
        run_ranks(Path(__file__).with_name("saving_rank.py"), size, path)
    return path


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("model", LAYOUTS[2])
def test_a_layout_loads_what_another_one_has_saved(folder: Path, model: str) -> None:
    run = run_of(folder, model)
    found = {
        size: [torch.load(folder / f"{model}-{size}.{rank}", weights_only=False) for rank in range(size)]
        for size in LAYOUTS
    }
    two, four = run.checkpoint(2), run.checkpoint(4)
    for checkpoint, size in ((two, 2), (four, 4)):
        saved = checkpoint.model() | checkpoint.optimizer()
        assert equal(saved, assembled([after for _, after in found[size]]))
        assert checkpoint.split is not None
        stored = sum(checkpoint.split.sizes().values())
        assert stored == sum({id(tensor): tensor.nbytes for tensor in saved.values()}.values())
    assert equal(two.model() | two.optimizer(), assembled([before for before, _ in found[4]]))
    _, alone = loaded(model, folder, World())
    assert equal(four.model() | four.optimizer(), assembled([alone]))
