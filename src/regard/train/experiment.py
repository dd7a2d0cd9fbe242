"""An experiment: model, data, task and training in one config, from which a whole run follows."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard.config import dump, option
from regard.data import Data, DataConfig, TextConfig
from regard.models import GPTConfig, ModelConfig
from regard.tasks import LanguageConfig, TaskConfig
from regard.train.optimizer import AdamWConfig, OptimizerConfig
from regard.train.schedule import CosineScheduleConfig, ScheduleConfig


@dataclass(frozen=True)
class TrainConfig:
    """How to train. One budget rules: `seconds` before `tokens` before `steps`."""

    steps: int | None = option(2000, "how many updates; the budget, unless tokens or seconds is given")
    tokens: int | None = option(None, "train on so many tokens, instead of a number of steps")
    seconds: float | None = option(None, "train for so long, preparation included, instead of a number of steps")
    budget: str | None = option(None, "a note, written by the run: what `steps` was worked out from")
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig, metadata={"help": "which rule moves the weights"})
    schedule: ScheduleConfig = field(
        default_factory=CosineScheduleConfig, metadata={"help": "the learning rate over time"}
    )
    clip: float | None = option(1.0, "the gradient's norm is cut to this (none: not at all)")
    accumulate: int = option(1, "micro-batches per update")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "number format; auto: bfloat16 on CUDA, float32 elsewhere"
    )
    checkpointing: bool = option(False, "recompute each block in backward: less memory, more time")
    compile: Literal["auto", "graphs", True, False] = option(
        "auto", "compile the model; auto: on CUDA only; graphs: the same as CUDA graphs, for small models"
    )
    device: str = option("auto", "cpu, cuda, cuda:1, mps; auto takes the fastest there is")
    evaluate_every: int | None = option(250, "steps between evaluations; there is always one at the end")
    log_every: int = option(10, "steps between records in metrics.jsonl")
    save_every: int | None = option(500, "steps between checkpoints; there is always one at the end")
    keep: int = option(2, "how many of the newest checkpoints stay")

    def check(self) -> None:
        """Refuse what cannot be trained."""
        if self.steps is None and self.tokens is None and self.seconds is None:
            raise ValueError("no budget is given; set one of steps, tokens and seconds")
        if self.tokens is not None and self.seconds is not None:
            raise ValueError("tokens and seconds are both given; leave out one of the two budgets")
        for name in ("steps", "tokens", "accumulate", "evaluate_every", "log_every", "save_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.compile == "graphs" and self.accumulate > 1:
            raise ValueError("compile = graphs holds the gradients of one micro-batch only; set accumulate to 1")
        for name in ("seconds", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number above 0, got {value}")


@dataclass(frozen=True)
class Experiment:
    """Everything a run is a function of, together with the step."""

    model: ModelConfig = field(default_factory=GPTConfig, metadata={"help": "the model"})
    data: DataConfig = field(default_factory=TextConfig, metadata={"help": "what to train on"})
    task: TaskConfig = field(default_factory=LanguageConfig, metadata={"help": "what to learn from it"})
    train: TrainConfig = field(default_factory=TrainConfig, metadata={"help": "how to train"})
    seed: int = option(1, "decides weights, batches and dropout")

    def check(self) -> None:
        """Refuse impossible combinations."""
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit into 64 bits, got {self.seed}")
        if self.train.compile is True and self.train.device == "mps":
            raise ValueError("compile = true is for cpu and cuda; on mps leave it at auto or false")

    def checked(self) -> "Experiment":
        """This experiment, after every check in it; a UserError names the key that fails one."""
        dump(self)
        return self

    def model_for(self, data: Data[Any]) -> ModelConfig:
        """The model's config with the vocabulary that the data turned out to have."""
        model: Any = self.model
        return model if data.vocabulary is None else replace(model, vocabulary=data.vocabulary)
