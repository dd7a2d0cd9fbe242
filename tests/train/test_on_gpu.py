"""The same training on CUDA: compiled, in bfloat16, with fused optimizers."""

import pytest
import torch
from train_kit import experiment, newest, start

from regard.train import MuonConfig, train
from regard.train.muon import orthogonalize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler has warnings of its own
]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_trains_compiled_in_bfloat16_and_resumes(text, tmp_path, optimizer):
    changes = {"optimizer": MuonConfig()} if optimizer == "muon" else {}
    wanted = experiment(text, {"dropout": 0.0}, steps=60, save_every=30, device="cuda", **changes)
    run = start(tmp_path, wanted)
    result = train(wanted, run)
    assert result.validation_loss is not None
    assert result.validation_loss < 2.2
    (run.path / "checkpoints" / "step-000060").rename(tmp_path / "away")
    again = train(wanted, run, resume=True)
    # Not bit for bit: some CUDA kernels add in an order of their own.
    assert again.validation_loss == pytest.approx(result.validation_loss, abs=0.05)
    assert newest(run).step == 60


def test_orthogonalize_in_bfloat16_is_near_the_exact_map():
    torch.manual_seed(0)
    matrices = [torch.randn(64, 160), torch.randn(64, 64)]
    for found, wanted in zip(orthogonalize([m.cuda() for m in matrices]), orthogonalize(matrices), strict=True):
        assert found.dtype == torch.float32
        assert float((found.cpu() - wanted).norm() / wanted.norm()) < 0.05
