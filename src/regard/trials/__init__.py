"""Trials: experiments that are trained side by side, each in its own run folder, so that whatever is done is kept."""

from regard.trials.pool import Outcome, Trial, cores, default_workers, train_trials

__all__ = ["Outcome", "Trial", "cores", "default_workers", "train_trials"]
