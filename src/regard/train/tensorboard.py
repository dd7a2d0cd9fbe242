"""TensorBoard events beside the run's own records, for whoever compares runs there.

They lie in the run folder under `tensorboard/`; the run's own files stay the truth, and the text of samples, the
gradients by layer and the entropies are read from there.
"""

from typing import Any

from regard.errors import UserError
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep


class TensorBoard(Observer):
    """Writes losses, rates and norms as they come, and what others recorded at every evaluation."""

    def __init__(self) -> None:
        """A UserError here, before anything is trained, if the package is missing."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs a package of its own: pip install 'regard[tensorboard]'") from None
        self._make = SummaryWriter
        self._writer: Any = None

    def started(self, start: TrainingStart) -> None:
        """Open the events; what a resumed run repeats replaces what was there."""
        self._run, self._train = start.run, start.experiment.train
        purge = start.step + 1 if start.step else None
        self._writer = self._make(str(start.run.file("tensorboard")), purge_step=purge)
        self._metrics = len([m for m in start.run.metrics() if m["step"] <= start.step]) if start.step else 0
        self._samples = len(start.run.samples()) if start.step else 0

    def stepped(self, step: TrainingStep) -> None:
        """The figures of a step that is logged."""
        if step.step % self._train.log_every and step.step not in (1, self._train.steps):
            return
        for name, value in (("loss/training", step.loss), ("rate", step.rate), ("gradient/norm", step.norm)):
            self._writer.add_scalar(name, value, step.step)
        if step.seconds:
            self._writer.add_scalar("speed/tokens per second", step.tokens / step.seconds, step.step)

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """The evaluation, and what was recorded since the last."""
        for name, value in measures.items():
            self._writer.add_scalar(
                f"loss/{name.removeprefix('validation_').replace('loss', 'validation')}", value, step
            )
        self._mirror()

    def finished(self, result: TrainingResult) -> None:
        """The rest."""
        self._mirror()
        self._writer.close()

    def failed(self, error: BaseException) -> None:
        """What there is."""
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
            # Four spaces make it code: TensorBoard shows text as Markdown, and a sample is none.
            text = "\n".join(f"    {line}" for line in f"{sample['prompt']}{sample['text']}".split("\n"))
            self._writer.add_text("sample", text, sample["step"])
        self._metrics, self._samples = len(metrics), len(samples)
        self._writer.flush()
