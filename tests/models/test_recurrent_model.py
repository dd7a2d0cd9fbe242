"""The recurrent language model: what it refuses, how it decodes, and a state that goes on from batch to batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.attention import Padded, Range, Slots
from regard.config import load, to_toml
from regard.data import TextConfig
from regard.errors import UserError
from regard.generate import Sampling, sampling_decoder
from regard.generate.load import load_model
from regard.models import ModelConfig, RecurrentConfig
from regard.runs import Run
from regard.train import AdamWConfig, Experiment, Observer, TrainConfig, checkpoint, train

SMALL = RecurrentConfig(vocabulary=11, context=6, layers=2, width=8)
CELLS = ("rnn", "lstm", "gru")


def tokens(rows: int = 2, length: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"cell": "elman"}, "there is no cell 'elman'; choose from rnn, lstm, gru"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"width": 0}, "width must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
    ],
)
def test_impossible_configs(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        replace(SMALL, **change).build()
    with pytest.raises(UserError):
        load(ModelConfig, {"kind": "recurrent", **change})


def test_slots_in_any_order_are_refused() -> None:
    order = torch.arange(6)[None]
    with pytest.raises(UserError, match="from left to right"):
        SMALL.build()(tokens(), Slots(order, torch.zeros_like(order), order))


@pytest.mark.parametrize("cell", CELLS)
def test_how_it_starts(cell: Any) -> None:
    """About a blind guess; LSTM's forget gates are open, on average by sigmoid(1)."""
    model = replace(SMALL, cell=cell, width=64).build()
    loss = torch.nn.functional.cross_entropy(model(tokens(8)).flatten(0, 1), tokens(8, seed=1).flatten())
    assert loss.item() == pytest.approx(torch.tensor(11.0).log().item(), abs=0.3)
    if cell == "lstm":
        bias = model.state_dict()["blocks.0.recurrent.cells.bias_ih_l0"]
        assert bias.view(4, -1).mean(dim=1).tolist() == [0, 1, 0, 0]
    assert replace(SMALL, tied=False).build().unembed.weight.shape == (11, 8)


def test_recomputing_blocks_changes_nothing() -> None:
    model, grads = replace(SMALL, dropout=0.3).build().train(), []
    for again in (False, True):
        model.checkpointing = again
        torch.manual_seed(3)
        grads.append(torch.autograd.grad(model(tokens()).sum(), list(model.parameters())))
    for plain, recomputed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("cell", CELLS)
def test_ragged_prompts_together_equal_one_by_one(cell: Any) -> None:
    """Rows of different lengths, two of them equal, written past the context, which makes them slide."""
    model = replace(SMALL, cell=cell, context=6).build().eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [4]]
    warm = Sampling(temperature=1.0)
    together = torch.stack(list(sampling_decoder(model, prompts, 12, warm, streams=range(4))), 1).tolist()
    for row, prompt in enumerate(prompts):
        alone = sampling_decoder(model, [prompt], 12, warm, streams=[row])
        assert together[row] == [int(token) for token in alone]
    assert len(set(map(tuple, together))) == 4


# A state that goes on


def carrying(**changes: Any) -> Any:
    torch.manual_seed(1)
    return replace(SMALL, carry=True, **changes).build().double().train()


@pytest.mark.parametrize("cell", CELLS)
def test_carried_windows_are_one_long_text(cell: Any) -> None:
    model, text = carrying(cell=cell), tokens(3, 24)
    windows = text.split(6, dim=1)
    got = [model(window, Range(6) if i == 0 else None) for i, window in enumerate(windows)]
    want = model.eval()(text)
    torch.testing.assert_close(torch.cat(got, dim=1), want)
    assert torch.equal(model.train()(windows[0], Range(6)), got[0])  # a text that begins anew
    assert not torch.allclose(model(windows[3], Range(6)), got[3])


def test_gradients_stop_at_the_border() -> None:
    """The second window's gradient is what it would be, were its first state just some numbers."""
    model, first, second = carrying(), *tokens(3, 12).split(6, dim=1)
    model(first, Range(6))
    state = model.carried.initial(3, 1, starts=False)
    assert not any(part.requires_grad for layer in state for part in layer)
    caught: list[torch.Tensor] = []
    model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out)
    _, after = model(first, Range(6)), model(second)
    of_first, of_second = torch.autograd.grad(after.sum(), caught, allow_unused=True)
    assert of_first is None
    assert of_second.any()


def test_evaluation_and_sampling_leave_it_alone() -> None:
    model = carrying()
    model(tokens(), Range(6))
    kept = {name: tensor.clone() for name, tensor in model.carried.named_buffers()}
    assert len(kept) == 2
    model.eval()
    model(tokens(5, 4), Padded(torch.tensor([1, 2, 3, 4, 4]), 4))
    model.step(tokens(5), model.start(5, 6))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.carried.named_buffers())
    model.train()(tokens())
    assert not any(torch.equal(tensor, kept[name]) for name, tensor in model.carried.named_buffers())


def test_windows_drawn_at_random_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--data\.order consecutive"):
        carrying()(tokens())
    wanted = experiment(text)
    drawn = replace(wanted, data=replace(wanted.data, order="random"))  # type: ignore[type-var]
    with pytest.raises(UserError, match=r"--data\.order consecutive"):
        train(drawn, Run.create(tmp_path, "run", to_toml(drawn), {}))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 12, encoding="utf-8")
    return path


def experiment(text: Path, cell: Any = "lstm") -> Experiment:
    """With 4 streams of 15 windows each, gone through twice; validation and checkpoints in between."""
    return Experiment(
        RecurrentConfig(cell=cell, context=8, layers=2, width=12, dropout=0.2, carry=True),
        TextConfig(path=str(text), batch=4, order="consecutive"),
        train=TrainConfig(
            steps=12, accumulate=2, optimizer=AdamWConfig(lr=1e-2), evaluate_every=5, save_every=5, device="cpu"
        ),
        seed=7,
    )


class Killed(Exception):
    pass


class KillAt(Observer):
    def __init__(self, step: int):
        self.step = step

    def stepped(self, step: Any) -> None:
        if step.step == self.step:
            raise Killed


def broken(wanted: Experiment, folder: Path, name: str) -> Run:
    run = Run.create(folder, name, to_toml(wanted), {})
    with pytest.raises(Killed):
        train(wanted, run, [KillAt(7)])
    return run


def weights(run: Run) -> dict[str, torch.Tensor]:
    found = run.latest()
    assert found is not None
    return found.model()


@pytest.mark.parametrize("cell", CELLS)
def test_a_resumed_run_is_bit_identical(text: Path, tmp_path: Path, cell: Any) -> None:
    wanted = experiment(text, cell)
    whole = Run.create(tmp_path, "whole", to_toml(wanted), {})
    train(wanted, whole)
    run = broken(wanted, tmp_path, "broken")
    train(load(Experiment, run.config), run, resume=True)
    got, want = weights(run), weights(whole)
    assert want["carried.hidden"].shape == (8, 2, 12)  # of both micro-batches
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    loaded = load_model(whole)  # the carried state is a buffer of training only
    assert torch.equal(loaded.model.get_parameter("embed.weight"), want["embed.weight"])


def test_a_forgotten_state_would_show(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(text)
    whole = Run.create(tmp_path, "whole", to_toml(wanted), {})
    train(wanted, whole)
    run = broken(wanted, tmp_path, "broken")
    restored = checkpoint.restore_model

    def forgetful(model: Any, tensors: dict[str, torch.Tensor]) -> None:
        carried = {n: torch.zeros(t.shape) for n, t in tensors.items() if n.startswith("carried.")}
        restored(model, {**tensors, **carried})

    monkeypatch.setattr(checkpoint, "restore_model", forgetful)
    train(load(Experiment, run.config), run, resume=True)
    assert not torch.equal(weights(run)["embed.weight"], weights(whole)["embed.weight"])


# Windows that go on


def test_consecutive_windows(tmp_path: Path) -> None:
    """Each row goes on where it ended; rows do not overlap; the ranks share out one batch; a new turn is marked."""
    path = tmp_path / "numbered.txt"
    path.write_text("".join(chr(0x100 + i) for i in range(1000)), encoding="utf-8")  # a token is its own position
    data = TextConfig(path=str(path), order="consecutive").build(16, tmp_path / "cache")
    windows = 899 // (4 * 16)  # of each row
    for turn in range(3):
        batches = [data.batch(turn * windows + i, seed=5, size=4) for i in range(windows)]
        assert [batch.slots for batch in batches] == [Range(16)] + [None] * (windows - 1)
        seen = torch.cat([batch.inputs for batch in batches], dim=1)
        assert (seen.diff(dim=1) == 1).all()
        assert seen.unique().numel() == seen.numel() == 4 * 16 * windows
        assert all(torch.equal(batch.targets, batch.inputs + 1) for batch in batches)
        assert seen.max() < 899
        ranks = [data.batch(turn * windows + 2, seed=5, rank=rank, world=2, size=2) for rank in range(2)]
        assert torch.equal(torch.cat([batch.inputs for batch in ranks]), batches[2].inputs)
    firsts = {int(data.batch(turn * windows, seed=5, size=4).inputs[0, 0]) for turn in range(20)}
    assert len(firsts) > 1
    with pytest.raises(UserError, match=r"lower --data\.batch"):
        data.batch(0, seed=5, size=60)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "conv"])
def test_the_recipes_train_write_and_report(
    kind: str, tmp_path: Path, text: Path, capsys: Any, monkeypatch: Any
) -> None:
    from regard.cli import main

    monkeypatch.chdir(tmp_path)
    small = ["--model.width", "16", "--model.context", "32", "--train.device", "cpu"]
    assert (
        main(["train", f"shakespeare-{kind}", "--data.path", str(text), "--train.steps", "3", "--name", "r", *small])
        == 0
    )
    assert main(["generate", "runs/r", "--prompt", "the cat", "a", "--tokens", "40"]) == 0
    page = (tmp_path / "runs" / "r" / "report.html").read_text(encoding="utf-8")
    assert "no layer of this model has observable attention weights" in page
    assert "the cat" in capsys.readouterr().out
