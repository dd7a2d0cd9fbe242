"""`regard predict`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions
from regard.commands.lines import read_lines
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.generate.predict import Predictor
    from regard.runs import Run

SHOWN = 10  # images of the run's own


@dataclass(frozen=True)
class PredictOptions(CheckpointOptions):
    """Options of `regard predict`."""

    text: str | None = argument(
        None, "the text, or the passage that answers a question; for a run on images, an image file or a folder of them"
    )
    file: str | None = option(None, "a file with a text on each line; - is standard input", metavar="FILE")
    question: str | None = option(None, "the question, for a run that answers questions")


def predict(options: PredictOptions) -> int:
    """Classify texts or images, tag words or answer a question about a text, by a trained encoder.

    The head of the run's model decides which: `regard train sentiment`, `tagging` and `questions` train one each, and
    `digits` one for images. Without an image, the first ones of the run's own test part are classified.
    """
    run = options.open()
    from regard.models.base import ModelConfig

    if run.load(ModelConfig, "model").reads_images:
        return predict_images(options, run)
    texts = [options.text] if options.text is not None else []
    texts += [] if options.file is None else read_lines(options.file)
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError("there is no text; give one, or --file FILE with a text on each line")
    from regard.data import ClassesConfig, DataConfig, LabeledConfig
    from regard.generate.predict import Predictor
    from regard.models.base import Encoder
    from regard.nn.heads import ClassesHeadConfig, SpansHeadConfig

    model, loaded = options.load(run, Encoder, "; predictions are made by an encoder")
    data = run.load(DataConfig, "data")
    longest = data.tokens if isinstance(data, LabeledConfig) else None
    keep, windows = (data.keep, data.windows) if isinstance(data, ClassesConfig) else ("start", 1)
    predictor = Predictor(model, loaded.tokenizer, longest, keep, windows)
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


def predict_images(options: PredictOptions, run: Run) -> int:
    """The classes of image files, or of the first test images of the run."""
    from regard.data import DataConfig, ImagesConfig
    from regard.generate.images import ImagePredictor, image_files
    from regard.generate.load import load_trained
    from regard.models.device import find_device

    if options.file is not None or options.question is not None:
        raise UserError("this run classifies images; give an image file or a folder: regard predict RUN IMAGE")
    loaded = load_trained(run, find_device(options.device), options.step)
    predictor, given = ImagePredictor(loaded.model), ()
    if options.text is not None:
        names = [str(path) for path in image_files(Path(options.text).expanduser())]
        images = [predictor.read(Path(name)) for name in names]
    else:
        config = run.load(DataConfig, "data")
        if not isinstance(config, ImagesConfig):
            raise UserError("this run has no images of its own; give an image file: regard predict RUN IMAGE")
        data = config.build(0)
        loaded.check_data(data)
        part, what = (data.test, "test") if data.test_count else (data.validation, "validation")
        images = list(part.images[:SHOWN])
        names = [f"{what} image {number}, a {data.labels[label]}" for number, label in enumerate(part.labels[:SHOWN])]
        given = tuple(data.labels[label] for label in part.labels[:SHOWN])
    found = predictor.classes(images)
    lines = [f"{one.label}  {one.probability:.3f}  {name}" for one, name in zip(found, names, strict=True)]
    records = [{"image": name, **one._asdict()} for one, name in zip(found, names, strict=True)]
    for record, label in zip(records, given, strict=False):
        record["given"] = label
    options.show({"run": str(run.path), "step": loaded.step, "predictions": records}, "\n".join(lines))
    return 0


def _answers(predictor: Predictor, texts: list[str], question: str | None):
    if not question:
        raise UserError("this run answers questions; give one: --question TEXT")
    return predictor.answers([(question, text) for text in texts])
