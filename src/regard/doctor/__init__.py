"""The doctor: faults of a training run, with place, evidence, cause and fix, during training and afterwards."""

from regard.doctor.check import Check, Finding, Findings, all_checks
from regard.doctor.context import History, RecentBatches, Resources, TrainingRun
from regard.doctor.doctor import Doctor
from regard.doctor.examine import examine
from regard.doctor.gradients import Gradients
from regard.doctor.model_pass import ModelPass
from regard.doctor.replay import Replay, ReplayedStep
from regard.doctor.side_pass import SidePass
