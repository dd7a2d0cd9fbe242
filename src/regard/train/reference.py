"""The log-probabilities of answers by the model before preference tuning: computed once, and kept in the run."""

import numpy as np
import torch
from torch import Tensor

from regard.data.chats.data import PreferenceData, PreferencePart
from regard.data.chats.packing import rows_in_order
from regard.errors import UserError
from regard.models import LanguageModel
from regard.runs import Run
from regard.runs.tensors import read_tensors, write_tensors
from regard.runs.waiting import progress
from regard.tasks.preference import PreferenceTask, log_probabilities
from regard.train.device import move
from regard.train.engine import Engine

REFERENCE = "reference.safetensors"


def attach_reference(engine: Engine, run: Run, *, resume: bool) -> None:
    """Give preference data its reference: of the engine's model at the start of a run, later from the run's folder."""
    data, task = engine.data, engine.task
    if not isinstance(data, PreferenceData) or not isinstance(task, PreferenceTask):
        return
    parts = {"train": data.train, "validation": data.validation}
    if resume:
        run.read(REFERENCE)  # checks that the run wrote it
        found = read_tensors(run.file(REFERENCE))
    else:
        found = {name: _computed(engine, part, task) for name, part in parts.items()}
        if engine.world.rank == 0:
            run.add(REFERENCE, lambda path: write_tensors(path, found))
    for name, part in parts.items():
        if name not in found or found[name].shape != (len(part.texts),):
            raise UserError(f"{run.file(REFERENCE)} does not fit the data; restore it from a copy, or start a new run")
        part.reference = found[name]


@torch.no_grad()
def _computed(engine: Engine, part: PreferencePart, task: PreferenceTask) -> Tensor:
    """log π_ref(y|x) of every text of a part, [2 * pairs], in evaluation mode."""
    size, model = engine.experiment.data.batch, engine.model
    assert isinstance(model, LanguageModel)  # the task trains no other
    was_training, found = model.training, [np.zeros(0)]
    model.eval()
    try:
        for numbers in progress(rows_in_order(part.count, size, 0, 1), part.count, "reference answers", len):
            batch = move(part.batch(numbers), engine.device)
            with engine.precision.autocast():
                found.append(log_probabilities(model, batch, task.config.logits).double().cpu().numpy())
    finally:
        model.train(was_training)
    return torch.from_numpy(np.concatenate(found)[: len(part.texts)])
