"""What a training needs and takes before it starts: parameters, FLOPs, memory, time, and settings that fit."""

from regard.plan.checkpoints import Checkpoints
from regard.plan.hardware import HARDWARE, UTILIZATION, Hardware
from regard.plan.law import MeasuredStep, Peaks, SpeedLaw, StepWork, measure_peaks
from regard.plan.layout import Memory
from regard.plan.meter import Work
from regard.plan.operations import Operation, Timeline, TimelineSegment
from regard.plan.overlap import Traffic
from regard.plan.plan import TOKENS_PER_PARAMETER, TrainingPlan, plan
from regard.plan.size import with_parameters
from regard.plan.speed import batches_of, measure, random_batch, step_work, variants
from regard.plan.trace import Part, StepTrace, trace

__all__ = [
    "HARDWARE",
    "TOKENS_PER_PARAMETER",
    "UTILIZATION",
    "Checkpoints",
    "Hardware",
    "MeasuredStep",
    "Memory",
    "Operation",
    "Part",
    "Peaks",
    "SpeedLaw",
    "StepTrace",
    "StepWork",
    "Timeline",
    "TimelineSegment",
    "Traffic",
    "TrainingPlan",
    "Work",
    "batches_of",
    "measure",
    "measure_peaks",
    "plan",
    "random_batch",
    "step_work",
    "trace",
    "variants",
    "with_parameters",
]
