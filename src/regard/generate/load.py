"""A trained model out of a run folder, ready to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from regard.config import load
from regard.errors import UserError
from regard.models import ModelConfig
from regard.runs import Run

if TYPE_CHECKING:
    from regard.data.tokenizer import Tokenizer


class Writer(NamedTuple):
    """A model with its tokenizer and the step it comes from."""

    model: Any
    tokenizer: Tokenizer
    step: int


def load_writer(run: Run, device: str = "cpu") -> Writer:
    """The newest whole checkpoint of a run, in evaluation mode."""
    from regard.data.tokenizer import load_tokenizer

    checkpoint = run.latest()
    if checkpoint is None:
        why = f" ({'; '.join(run.damaged)})" if run.damaged else ""
        raise UserError(f"the run {run.path} has no checkpoint yet{why}; train it first: regard resume {run.path}")
    config: Any = load(ModelConfig, run.config["model"], source=str(run.path / "config.toml"))
    model = config.build()
    model.load_state_dict(checkpoint.model())
    return Writer(model.to(device).eval(), load_tokenizer(run.file("tokenizer.json")), checkpoint.step)
