"""Training: the loop, schedules, optimizers, precision and budgets. It tells observers, and knows nothing above it."""

from regard.train.diagnose import Diverged
from regard.train.experiment import Experiment, TrainConfig
from regard.train.guard import check_start
from regard.train.live import LiveLine
from regard.train.loop import train
from regard.train.observer import Observer, Result, Start, Step
from regard.train.optimizer import AdamWConfig, MuonConfig, Optimizer, OptimizerConfig
from regard.train.resume_notice import ResumeNotice
from regard.train.schedule import (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    NoamConfig,
    ScheduleConfig,
    TrapezoidConfig,
)

__all__ = [
    "AdamWConfig",
    "ConstantConfig",
    "CosineConfig",
    "Diverged",
    "Experiment",
    "LinearConfig",
    "LiveLine",
    "MuonConfig",
    "NoamConfig",
    "Observer",
    "Optimizer",
    "OptimizerConfig",
    "Result",
    "ResumeNotice",
    "ScheduleConfig",
    "Start",
    "Step",
    "TrainConfig",
    "TrapezoidConfig",
    "check_start",
    "train",
]
