"""An experiment: model, data, task and training in one config, which determines a whole run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from regard.config import Config, dump, option
from regard.data import Batch, Data, DataConfig, TextConfig
from regard.models import GPTConfig, ModelConfig
from regard.nn.quantized import QuantizationConfig
from regard.tasks import LanguageConfig, TaskConfig
from regard.train.adapt import AdaptConfig, FullConfig
from regard.train.optimizer import AdamWConfig, OptimizerConfig
from regard.train.precision import PrecisionName
from regard.train.schedule import CosineScheduleConfig, Plans, ScheduleConfig, virtual_step

#: The number of steps that schedules see during calibration, when the real one is not known yet.
CALIBRATING = 10**9


@dataclass(frozen=True)
class TrainConfig(Config):
    """How to train. The budget is ``seconds``, ``tokens`` or ``epochs`` if given, else ``steps``."""

    steps: int | None = option(2000, "number of optimizer steps; the budget, unless another is given")
    tokens: int | None = option(None, "train on this many tokens, instead of a number of steps", example=10_000_000)
    epochs: float | None = option(
        None, "train on the training part this many times, instead of a number of steps", example=3
    )
    seconds: float | None = option(
        None,
        "the command takes this many seconds, from its start to its end, instead of a number of steps",
        example=120,
    )
    budget: str | None = option(None, "a note, written by the run: what `steps` was computed from")
    plans: tuple[tuple[int, int], ...] = option(
        (),
        "written by a run with a budget in seconds: [step, steps] for each time it set the number of steps; the "
        "schedule follows them if they end with `steps`",
    )
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig, metadata={"help": "the optimizer"})
    schedule: ScheduleConfig = field(
        default_factory=CosineScheduleConfig, metadata={"help": "the learning rate over time"}
    )
    dropout: float | None = option(None, "replaces the dropout of the model, also of a pretrained one (none: keep it)")
    adapt: AdaptConfig = field(default_factory=FullConfig, metadata={"help": "which parameters are trained"})
    patience: int | None = option(
        None,
        "early stopping: end after so many evaluations without a better one, and keep the best weights (none: do not)",
    )
    clip: float | None = option(1.0, "gradient clipping: the largest norm (none: no clipping)")
    accumulate: int = option(1, "gradient accumulation: micro-batches per step")
    lanes: int | None = option(
        None,
        "parts of each batch, shared by the processes, so that a multiple of them is the same run; written by the run "
        "(none: as many as processes share the batch)",
    )
    precision: PrecisionName = option("auto", "number format; auto: bfloat16 on CUDA, float32 elsewhere")
    checkpointing: bool = option(
        False, "activation checkpointing: recompute each block in the backward pass; less memory, more time"
    )
    compile: Literal["auto", "graphs", True, False] = option(
        "auto", "torch.compile; auto: on CUDA only; graphs: with CUDA graphs, for small models"
    )
    device: str = option("auto", "cpu, cuda, cuda:1, mps; auto: the fastest that is available")
    evaluate_every: int | None = option(250, "steps between evaluations; there is always one at the end")
    evaluate_tokens: int | None = option(
        None,
        "evaluate on about this many targets, in batches from all over the validation part; written by the first "
        "evaluation unless it is given (none: on all of it)",
    )
    evaluate_share: float | None = option(
        0.1,
        "without evaluate_tokens: an evaluation takes about this share of the work before the first one at most, as a "
        "token costs a third of what it does in training (none: it reads all of the validation part)",
    )
    log_every: int = option(10, "steps between records in metrics.jsonl")
    save_every: int | None = option(500, "steps between checkpoints; there is always one at the end")
    save_async: bool = option(
        False, "write checkpoints from a thread while training goes on; takes memory for a copy of what is saved"
    )
    keep: int = option(2, "number of newest checkpoints to keep")

    def factor(self, step: int) -> float:
        """The schedule's factor of step number ``step``, from 0."""
        planned: Plans = self.plans if self.plans and self.plans[-1][1] == self.steps else ()
        if planned:
            return self.schedule.factor(virtual_step(step, planned), planned[0][1])
        return self.schedule.factor(step, self.steps or CALIBRATING)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of an update, over all lanes."""
        return self.accumulate * (self.lanes or 1)

    def check(self) -> None:
        """Refuse impossible values."""
        others = {"tokens": self.tokens, "epochs": self.epochs, "seconds": self.seconds}
        given = [name for name, value in others.items() if value is not None]
        if self.steps is None and not given:
            raise ValueError("no budget is given; set one of steps, tokens, epochs and seconds")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given, but a run has one budget; leave out all but one")
        counts = (
            "steps",
            "tokens",
            "accumulate",
            "lanes",
            "evaluate_every",
            "evaluate_tokens",
            "log_every",
            "save_every",
            "keep",
        )
        for name in (*counts, "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.compile == "graphs" and self.accumulate > 1:
            raise ValueError("compile = graphs holds the gradients of one micro-batch only; set accumulate to 1")
        for name in ("epochs", "seconds", "clip", "evaluate_share"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number above 0, got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")


@dataclass(frozen=True)
class Experiment(Config):
    """Everything that determines a run."""

    model: ModelConfig = field(default_factory=GPTConfig, metadata={"help": "the model"})
    data: DataConfig = field(default_factory=TextConfig, metadata={"help": "the training data"})
    task: TaskConfig = field(default_factory=LanguageConfig, metadata={"help": "the loss"})
    train: TrainConfig = field(default_factory=TrainConfig, metadata={"help": "how to train"})
    quantization: QuantizationConfig | None = option(None, "how the weights are stored; `regard compress` writes it")
    init: str | None = option(
        None, "start from the weights of this run or published model (`regard models`); its sizes replace the model's"
    )
    seed: int = option(1, "seed of the weights, batches and dropout")

    def check(self) -> None:
        """Refuse impossible combinations."""
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit into 64 bits, got {self.seed}")
        if self.train.compile is True and self.train.device == "mps":
            raise ValueError("compile = true is for cpu and cuda; on mps leave it at auto or false")
        if self.init is None and self.train.adapt.freezes:
            raise ValueError(
                "without init, train.adapt would keep random weights; name an --init, or set --train.adapt full"
            )

    def checked(self) -> "Experiment":
        """This experiment, after all checks; a UserError names the key that fails."""
        dump(self)
        return self

    def micro_batches(self, position: int, lanes: range = range(1)) -> list[tuple[int, int]]:
        """The position and lane of each micro-batch that a process takes in the update from ``position`` on."""
        return [(position + number, lane) for number in range(self.train.accumulate) for lane in lanes]

    def batch(self, data: Data[Batch], position: int, lane: int = 0, lanes: int = 1) -> Batch:
        """Micro-batch number ``position`` of a lane.

        The micro-batches of an update, like the lanes', are parts of one batch: batch b accumulated a times trains on
        exactly what batch a*b trains on.
        """
        step, number = divmod(position, self.train.accumulate)
        part, parts = number * lanes + lane, self.train.accumulate * lanes
        return data.batch(step, seed=self.seed, rank=part, world=parts, size=self.data.batch)

    def validation_batches(self, data: Data[Batch], part: int = 0, parts: int = 1) -> Iterator[Batch]:
        """One part of the batches for validation; evenly spaced ones if ``evaluate_tokens`` limits their targets."""
        batches = data.validation_batches(self.data.batch, rank=part, world=parts)
        return islice(batches, 0, None, self.validation_stride(data))

    def validation_stride(self, data: Data[Batch]) -> int:
        """1 if the whole validation part is evaluated, 4 if every fourth of its batches is."""
        limit, count = self.train.evaluate_tokens, data.validation_count
        return 1 if limit is None or count is None else max(1, round(count / limit))

    def model_for(self, data: Data[Batch]) -> ModelConfig:
        """The model's config: what the data has (vocabulary or shape), the training's dropout, the task's head.

        A pretrained model keeps its vocabulary, which may have unused numbers after those of its tokenizer, and its
        image size, unless its weights fit every size: it reads others at their resolution.
        """
        if self.init is None:
            model = self.model.reading(data.vocabulary, data.shape)
        else:
            model = self.model.reading(None, data.shape) if self.model.resizable else self.model
        if self.train.dropout is not None:
            model = model.with_dropout(self.train.dropout)
        return self.task.model_for(model, data)
