"""Training: the loop, optimizers, schedules, precision, sharding, budgets and observers."""

from regard.train.diagnose import Diverged
from regard.train.experiment import Experiment, TrainConfig
from regard.train.guard import check_start
from regard.train.live import LiveLine, ResumeNotice
from regard.train.loop import fit, train
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.optimizer import AdamWConfig, MuonConfig, Optimizer, OptimizerConfig
from regard.train.schedule import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    LinearScheduleConfig,
    NoamScheduleConfig,
    ScheduleConfig,
    TrapezoidScheduleConfig,
)
