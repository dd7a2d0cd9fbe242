"""Transcription by a run of `regard train dutch-speech` or another of the task `speech`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.data.base import IGNORE_INDEX
from regard.data.signals.config import SpeechConfig
from regard.data.signals.data import array_batch
from regard.errors import UserError
from regard.generate.load import load_trained
from regard.generate.transcription import Speech
from regard.models.base import Model
from regard.models.device import parameter_device
from regard.runs import Run
from regard.tasks import TaskConfig
from regard.tasks.speech import SpeechTask


@dataclass(frozen=True)
class SpeechTranscriber:
    """Transcribes sound in windows as long as the longest sound in training."""

    model: Model
    task: SpeechTask
    rate: int  # samples per second
    window: int  # samples

    @torch.inference_mode()
    def transcribe(self, samples: Tensor) -> Iterator[Speech]:
        """The text of samples [N], window by window. A word at the end of one may be cut."""
        for first in range(0, len(samples), self.window):
            piece = samples[first : first + self.window]
            batch = array_batch([piece[:, None].numpy()], (np.full(1, IGNORE_INDEX),), True)
            batch = batch._replace(inputs=batch.inputs.to(parameter_device(self.model)))
            text = self.task.predictions(self.model, batch)[0].line
            yield Speech(first / self.rate, (first + len(piece)) / self.rate, None, [], text)


def load_speech_transcriber(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> SpeechTranscriber:
    """The transcriber of a run that was trained on speech and its text."""
    from regard.data import DataConfig

    data, task = run.load(DataConfig, "data"), run.load(TaskConfig, "task").build()
    if not isinstance(data, SpeechConfig) or not isinstance(task, SpeechTask):
        raise UserError(f"{run.path} was not trained to write what is said; give --run whisper-tiny")
    return SpeechTranscriber(load_trained(run, device, step).model, task, data.rate, data.longest)
