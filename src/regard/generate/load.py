"""A trained model out of a run folder, ready to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard.errors import UserError
from regard.models import ModelConfig
from regard.runs import Run

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer


class Writer(NamedTuple):
    """A model with its tokenizer and the step it comes from."""

    model: Any
    tokenizer: Tokenizer
    step: int
    trained_on: str | None = None  # the SHA-256 of its text

    def check(self, data: Any) -> None:
        """Refuse data that is not what the model was trained on: its numbers would mean other characters."""
        if self.trained_on is not None and self.trained_on != data.sha256:
            raise UserError(f"{data.name} is not the text that this run was trained on; put the old file back")


def load_writer(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> Writer:
    """The checkpoint of a step, or else the newest whole one of a run, in evaluation mode."""
    from regard.data.tokenizers import load_tokenizer

    checkpoint = run.latest() if step is None else run.checkpoint(step)
    if checkpoint is None:
        why = f" ({'; '.join(run.damaged)})" if run.damaged else ""
        raise UserError(f"the run {run.path} has no checkpoint yet{why}; train it first: regard resume {run.path}")
    config: Any = run.load(ModelConfig, "model")
    model = config.build()
    try:
        model.load_state_dict(checkpoint.model())
    except RuntimeError as error:  # PyTorch's word for names and shapes that do not belong together
        raise UserError(
            f"the checkpoint does not fit {run.path / 'config.toml'}; undo the change to it, or train a new run"
        ) from error
    return Writer(
        model.to(device).eval(),
        load_tokenizer(run.file("tokenizer.json")),
        checkpoint.step,
        checkpoint.state.get("data"),
    )


def find_device(name: str, local: int = 0, option: str = "--device") -> torch.device:
    """The device called ``name``, made the current one; "auto" takes CUDA, then MPS, then the CPU.

    Of several CUDA devices the process number ``local`` of a machine takes its own. A UserError, which names the
    ``option`` to mend, when the device is not there.
    """
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    kind, colon, index = name.partition(":")
    there = counts.get(kind, 0)
    if not there or (colon and not index.isdigit()) or int(index or 0) >= there:
        usable = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"there is no device {name!r} here; choose {option} from: auto, {usable}")
    if kind != "cuda":
        return torch.device(kind)
    number = int(index) if index else local
    if number >= there:
        raise UserError(
            f"there is no device cuda:{number}, only {there} of that kind; start fewer processes per machine or "
            f"choose another {option}"
        )
    torch.cuda.set_device(number)  # kernels of our own are launched on the current one
    return torch.device(kind, number)
