"""What a training needs and takes before it starts: parameters, FLOPs, memory, time, and settings that fit."""

from regard.plan.hardware import HARDWARE, UTILIZATION, Hardware
from regard.plan.plan import Memory, Plan, plan
from regard.plan.speed import Measured, SpeedLaw, measure, random_batch, step_work, variants
from regard.plan.trace import Part, StepTrace, Work, trace

__all__ = [
    "HARDWARE",
    "UTILIZATION",
    "Hardware",
    "Measured",
    "Memory",
    "Part",
    "Plan",
    "SpeedLaw",
    "StepTrace",
    "Work",
    "measure",
    "plan",
    "random_batch",
    "step_work",
    "trace",
    "variants",
]
