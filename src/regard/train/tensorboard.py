"""TensorBoard events in the run folder under `tensorboard/`.

Samples, gradients by layer and entropies are mirrored from the run's own records.
"""

from typing import Any

from regard.errors import UserError
from regard.train.experiment import Experiment
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep


class TensorBoard(Observer):
    """Writes loss, learning rate and gradient norm of logged steps; mirrors the run's records at every evaluation."""

    def __init__(self) -> None:
        """Raise a UserError if the package is missing."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs another package: pip install 'regard[tensorboard]'") from None
        self._make = SummaryWriter
        self._writer: Any = None

    def started(self, start: TrainingStart) -> None:
        """Open the event file; a resumed run replaces the steps that it repeats."""
        self._run, self._train = start.run, start.experiment.train
        purge = start.step + 1 if start.step else None
        self._writer = self._make(str(start.run.file("tensorboard")), purge_step=purge)
        self._metrics = len([m for m in start.run.metrics() if m["step"] <= start.step]) if start.step else 0
        self._samples = len(start.run.samples()) if start.step else 0

    def changed(self, experiment: Experiment) -> None:
        """Log by the new numbers."""
        self._train = experiment.train

    def stepped(self, step: TrainingStep) -> None:
        """Write the step if it is logged."""
        if step.step % self._train.log_every and step.step not in (1, self._train.steps):
            return
        for name, value in (("loss/training", step.loss), ("rate", step.lr), ("gradient/norm", step.norm)):
            self._writer.add_scalar(name, value, step.step)
        if step.seconds:
            self._writer.add_scalar("speed/tokens per second", step.tokens / step.seconds, step.step)

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Write the evaluation and the records since the last one."""
        for name, value in measures.items():
            self._writer.add_scalar(
                f"loss/{name.removeprefix('validation_').replace('loss', 'validation')}", value, step
            )
        self._mirror()

    def finished(self, result: TrainingResult) -> None:
        """Write the remaining records and close the file."""
        self._mirror()
        self._writer.close()

    def failed(self, error: BaseException) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _mirror(self) -> None:
        metrics, samples = self._run.metrics(), self._run.samples()
        for record in metrics[self._metrics :]:
            for layer, norm in record.get("gradients", {}).items():
                self._writer.add_scalar(f"gradient by layer/{layer}", float(norm), record["step"])
            for name, values in record.get("spread", {}).items():
                for head, value in enumerate(values, start=1):
                    self._writer.add_scalar(f"spread/{name}/{head}", float(value), record["step"])
        for sample in samples[self._samples :]:
            # Indented by four spaces, since TensorBoard renders text as Markdown.
            text = "\n".join(f"    {line}" for line in f"{sample['prompt']}{sample['text']}".split("\n"))
            self._writer.add_text("sample", text, sample["step"])
        self._metrics, self._samples = len(metrics), len(samples)
        self._writer.flush()
