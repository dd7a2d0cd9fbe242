"""`regard predict`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions
from regard.commands.lines import read_lines
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.generate.predict import Predictor


@dataclass(frozen=True)
class PredictOptions(CheckpointOptions):
    """Options of `regard predict`."""

    text: str | None = argument(None, "the text, or the passage that answers a question")
    file: str | None = option(None, "a file with a text on each line; - is standard input", metavar="FILE")
    question: str | None = option(None, "the question, for a run that answers questions")


def predict(options: PredictOptions) -> int:
    """Classify texts, tag their words or answer a question about them, by a fine-tuned encoder.

    The head of the run's model decides which: `regard train sentiment`, `tagging` and `questions` train one each.
    """
    texts = [options.text] if options.text is not None else []
    texts += [] if options.file is None else read_lines(options.file)
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError("there is no text; give one, or --file FILE with a text on each line")
    run = options.open()
    from regard.data import ClassesConfig, DataConfig, LabeledConfig
    from regard.generate.load import load_model
    from regard.generate.predict import Predictor
    from regard.models.base import Encoder
    from regard.models.device import find_device
    from regard.nn.heads import ClassesHeadConfig, SpansHeadConfig

    loaded = load_model(run, find_device(options.device), options.step)
    if not isinstance(loaded.model, Encoder):
        raise UserError(f"{run.path} is a {type(loaded.model).__name__}; predictions are made by an encoder")
    data = run.load(DataConfig, "data")
    longest = data.tokens if isinstance(data, LabeledConfig) else None
    keep, windows = (data.keep, data.windows) if isinstance(data, ClassesConfig) else ("start", 1)
    predictor = Predictor(loaded.model, loaded.tokenizer, longest, keep, windows)
    if isinstance(predictor.head, ClassesHeadConfig):
        found = predictor.classes(texts)
        lines = [f"{one.label}  {one.probability:.3f}  {text}" for one, text in zip(found, texts, strict=True)]
    elif isinstance(predictor.head, SpansHeadConfig):
        found = _answers(predictor, texts, options.question)
        lines = [f"{one.answer or '(no answer)'}  {one.probability:.3f}" for one in found]
    else:
        found = predictor.tags(texts)
        lines = [" ".join(f"{word}/{tag}" for word, tag in zip(*one, strict=True)) for one in found]
    records = [{"text": text, **one._asdict()} for text, one in zip(texts, found, strict=True)]
    options.show({"run": str(run.path), "step": loaded.step, "predictions": records}, "\n".join(lines))
    return 0


def _answers(predictor: Predictor, texts: list[str], question: str | None):
    if not question:
        raise UserError("this run answers questions; give one: --question TEXT")
    return predictor.answers([(question, text) for text in texts])
