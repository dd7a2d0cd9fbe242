"""`regard predict`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions, check_parent
from regard.commands.lines import read_lines
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.generate.predict import Predictor
    from regard.pages.html import ChartSection
    from regard.runs import Run

SHOWN = 10  # examples of the run's own


@dataclass(frozen=True)
class PredictOptions(CheckpointOptions):
    """Options of `regard predict`."""

    text: str | None = argument(
        None,
        "the text, or the passage that answers a question; for a run on images or other arrays, a file or a folder",
    )
    file: str | None = option(None, "a file with a text on each line; - is standard input", metavar="FILE")
    prompt: tuple[str, ...] = option(
        (), "a text that an image may be about, for a run that compares both; repeat it for each choice", repeated=1
    )
    question: str | None = option(None, "the question, for a run that answers questions")
    out: Path | None = option(None, "for a run that forecasts series: draw the forecasts into this SVG file")


def predict(options: PredictOptions) -> int:
    """Classify texts, images or other arrays, tag words or answer a question about a text, by a trained encoder.

    The run's task decides which: `regard train sentiment`, `tagging` and `questions` train one each, and `digits` one
    for images. Without a file, a model of images or other arrays answers for the first examples of its test part.
    """
    check_parent(options.out)
    run = options.open()
    from regard.models.base import ModelConfig

    if run.load(ModelConfig, "model").reads != "text":
        return predict_arrays(options, run)
    if options.prompt:
        raise UserError("--prompt is for a run that compares images with texts; this one reads text only")
    if options.out is not None:
        raise UserError("--out is for forecasts of series, and this run reads text")
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


def predict_arrays(options: PredictOptions, run: Run) -> int:
    """The answers for files, or for the first held-out examples of the run."""
    import torch

    from regard.data import ExampleData
    from regard.generate.load import load_trained
    from regard.models.device import find_device
    from regard.tasks import Predicting
    from regard.train import Experiment
    from regard.train.device import move

    if options.file is not None or options.question is not None:
        raise UserError("this run reads no text; give a file or a folder: regard predict RUN FILE")
    experiment, device = run.load(Experiment), find_device(options.device)
    task, loaded = experiment.task.build(), load_trained(run, device, options.step)
    if not isinstance(task, Predicting):
        raise UserError(f"the task {experiment.task.kind} makes no predictions for single examples")
    task.tokenizer = loaded.tokenizer
    if options.text is not None:
        examples = experiment.data.read_examples(Path(options.text).expanduser(), loaded.model.config)
    else:
        data = experiment.data.build(experiment.model.context)
        loaded.check_data(data)
        examples = data.held_out(SHOWN) if isinstance(data, ExampleData) else []
        if not examples:
            raise UserError("this run holds no examples out; give a file: regard predict RUN FILE")
    if options.prompt:
        if loaded.tokenizer is None:
            raise UserError(f"{run.path} reads no text, so prompts are of no use; leave --prompt out")
        examples = experiment.data.prompted(examples, options.prompt, loaded.tokenizer)
    lines, records, charts = [], [], {}
    with torch.no_grad():
        for one in examples:
            for answer in task.predictions(loaded.model, move(one.batch, device)):
                part = {} if answer.part is None or not one.parts else {"part": one.parts[answer.part]}
                given = {} if one.given is None else {"given": one.given}
                name = part.get("part", one.name)
                lines.append(f"{name}\n{answer.line}" if "\n" in answer.line else f"{answer.line}  {name}")
                records.append({"example": one.name, **part, **answer.record, **given})
                charts.setdefault(one.name, []).extend(answer.charts)
    if options.out is not None:
        _draw(options.out, charts)
    options.show({"run": str(run.path), "step": loaded.step, "predictions": records}, "\n".join(lines))
    return 0


def _draw(path: Path, charts: Mapping[str, Sequence[ChartSection]]) -> None:
    """Write the charts of all examples as one SVG file."""
    from regard.pages.html import chart_picture
    from regard.runs.disk import replace_file

    several = len(charts) > 1
    drawn = [
        replace(chart, title=f"{chart.title}, {name}" if several else chart.title)
        for name, some in charts.items()
        for chart in some
    ]
    if not drawn:
        raise UserError("this run's answers have no charts; leave out --out")
    replace_file(path, chart_picture(drawn, "Forecasts", "; ".join(charts)).encode())
    print(f"drawn in {path}", file=sys.stderr)


def _answers(predictor: Predictor, texts: list[str], question: str | None):
    if not question:
        raise UserError("this run answers questions; give one: --question TEXT")
    return predictor.answers([(question, text) for text in texts])
