"""`regard evaluate`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from regard.commands.common import CheckpointOptions
from regard.config import option
from regard.errors import UserError
from regard.runs.waiting import progress

if TYPE_CHECKING:
    from regard.data import TextData
    from regard.generate.load import LoadedModel, TrainedModel
    from regard.runs import Run
    from regard.train import Experiment


@dataclass(frozen=True)
class EvaluateOptions(CheckpointOptions):
    """Options of `regard evaluate`."""

    part: Literal["validation", "test", "train"] = option("validation", "the part of the run's own text")
    file: str | None = option(
        None, "any other text instead: a file, a folder or a pattern, with the run's tokenizer", metavar="FILE"
    )
    source: str | None = option(
        None, "for labelled runs, another source or folder of the same form, such as the same emoji in another style"
    )
    stride: int | None = option(
        None, "slide the window by this many tokens, so that each is predicted from a long context; default: no overlap"
    )
    window: int | None = option(None, "with --file: tokens of a window; default: the model's context")
    batch: int = option(16, "windows per batch")


def evaluate(options: EvaluateOptions) -> int:
    """Measure a trained model's loss on a part of its text, or on any file.

    In nats per token and as perplexity, which depend on the tokenizer, and in bits per character and per byte, which
    compare models of different tokenizers.
    """
    options.check_at_least_one("batch", "window")
    if options.window is not None and options.file is None:
        raise UserError("--window is for a text of your own; give it with --file")
    run = options.open()
    from regard.data import LabeledConfig, SyntheticConfig
    from regard.generate.load import load_model, load_trained
    from regard.models.device import find_device
    from regard.train import Experiment

    experiment, device = run.load(Experiment), find_device(options.device)
    labelled = isinstance(experiment.data, LabeledConfig | SyntheticConfig) or experiment.model.reads != "text"
    if options.source is not None and not (labelled and options.file is None):
        raise UserError("--source is for runs on labelled examples; give a text with --file")
    if labelled and options.file is None:
        return evaluate_labels(options, run, experiment, load_trained(run, device, options.step))
    return evaluate_text(options, run, experiment, load_model(run, device, options.step))


def evaluate_text(options: EvaluateOptions, run: "Run", experiment: "Experiment", loaded: "LoadedModel") -> int:
    """The loss on a part of the run's text, or on a file."""
    from regard.data.chats.config import MessagesConfig
    from regard.models.device import parameter_device
    from regard.tasks import LanguageConfig
    from regard.train.evaluate import score
    from regard.train.precision import Precision

    part = options.part if options.file is None else "test"
    data = own_text(run, experiment, loaded) if options.file is None else other_text(options, run, experiment, loaded)
    targets = data.parts._asdict()[part].targets
    if not targets:
        raise UserError(f"this run's text has no {part} part; train with --data.{part} 0.05 to keep one back")
    stride = data.context if options.stride is None else options.stride
    tuned = isinstance(experiment.data, MessagesConfig)  # of other losses than that of a text
    task = (LanguageConfig() if tuned else experiment.task).build()
    batches = data.sliding_batches(part, options.batch, stride)
    watched = progress(batches, targets, "tokens", lambda batch: int((batch.targets >= 0).sum()))
    result = score(loaded.model, task, watched, Precision("auto", parameter_device(loaded.model)))
    characters, size = data.amount(part)
    summary = {
        "run": str(run.path),
        "step": loaded.step,
        "damaged": run.damaged,
        **({"part": part} if options.file is None else {"file": options.file}),
        "stride": options.stride,
        "targets": result.targets,
        "loss": result.loss,
        "perplexity": result.perplexity,
        "bits_per_character": result.bits_per(characters / result.targets),
        "bits_per_byte": result.bits_per(size / result.targets),
    }
    bits = f"{summary['bits_per_character']:.4f} bits per character, {summary['bits_per_byte']:.4f} bits per byte"
    what = f"{run.path}, step {loaded.step:,}, {options.file or f'{part} part'} of {result.targets:,} tokens"
    options.show(summary, f"{what}: {result.loss:.4f} nats per token, perplexity {result.perplexity:.4g}, {bits}")
    return 0


def evaluate_labels(options: EvaluateOptions, run: "Run", experiment: "Experiment", loaded: "TrainedModel") -> int:
    """The measures of an encoder of texts or images on its validation or test part."""
    from regard.data import SyntheticConfig
    from regard.models.device import parameter_device
    from regard.tasks import Measured
    from regard.train.evaluate import in_words, measure
    from regard.train.precision import Precision

    task, config = experiment.task.build(), experiment.data
    config = config if options.source is None else config.with_source(options.source)
    data = config.build(experiment.model.context, tokenizer=loaded.tokenizer)
    if options.source is None:
        loaded.check_data(data)
    elif experiment.task.fit(data) != experiment.task:
        raise UserError(f"{data.name} has other classes than this run's data; give another --source")
    if not isinstance(task, Measured):
        raise UserError(f"the task {experiment.task.kind} has no measures")
    parts = {"validation": data.validation_batches, "test": data.test_batches}
    if options.part not in parts:
        raise UserError("this run is measured on its validation or test part; give --part test")
    count = {"validation": data.validation_count, "test": data.test_count}[options.part]
    if not count:
        raise UserError(f"this run's data has no {options.part} part; train with --data.{options.part} 0.05")
    batches = parts[options.part](max(experiment.data.batch, data.smallest_batch))
    precision = Precision("auto", parameter_device(loaded.model))
    loss, measures = measure(
        loaded.model, task, progress(batches, count, "examples", lambda one: len(one.targets)), precision
    )
    unit = "tokens" if isinstance(config, SyntheticConfig) else "examples"
    summary = {"run": str(run.path), "step": loaded.step, "part": options.part, unit: count, "loss": loss.loss}
    what = f"{run.path}, step {loaded.step:,}, {options.part} part of {count:,} {unit}"
    what += "" if options.source is None else f" of {data.name}"
    options.show({**summary, **measures}, f"{what}: {in_words(measures)}; loss {loss.loss:.4f}")
    return 0


def own_text(run: "Run", experiment: "Experiment", loaded: "LoadedModel") -> "TextData":
    """The text that the run was trained on."""
    from regard.data import TextData
    from regard.data.chats.config import MessagesConfig

    if isinstance(experiment.data, MessagesConfig):
        raise UserError(f"{run.path} was tuned on conversations; give a text: regard evaluate {run.path} --file FILE")
    data = experiment.data.build(experiment.model.context)
    if data.specials is not None:
        raise UserError(f"{run.path} translates: regard translate {run.path} --test gives its BLEU")
    if not isinstance(data, TextData):
        raise UserError(f"{run.path} was trained on {data.name}, which is no text; `regard evaluate` needs a text")
    loaded.check_data(data)
    return data


def other_text(options: EvaluateOptions, run: "Run", experiment: "Experiment", loaded: "LoadedModel") -> "TextData":
    """Another text, with the run's tokenizer; its training text is not needed."""
    from regard.data import ImportedConfig, PairsConfig, TextConfig
    from regard.data.chats.config import MessagesConfig

    if isinstance(experiment.data, PairsConfig):
        other = f"regard translate {run.path} --file SOURCES --reference TRANSLATIONS"
        raise UserError(f"{run.path} translates; {other} gives the BLEU of other sentences")
    if not isinstance(experiment.data, TextConfig | ImportedConfig | MessagesConfig):
        raise UserError(f"{run.path} was not trained on a text; --file is for language models of text")
    given = experiment.data if isinstance(experiment.data, TextConfig) else TextConfig()
    most = experiment.model.context if loaded.model.limit is None else loaded.model.limit
    if options.window is not None and options.window > most:
        raise UserError(f"--window {options.window}: the model reads at most {most} tokens")
    return given.evaluated(options.file or "", options.window or experiment.model.context, loaded.tokenizer)
