"""Load the trained model of a run folder."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.config.parts import with_options
from regard.data import Data, Tokenizer, load_tokenizer
from regard.errors import UserError
from regard.generate.sampling import Sampling
from regard.generate.text import Prompt, TextGenerator
from regard.models import LanguageModel, ModelConfig
from regard.models.base import Encoder, Model, Seq2SeqModel
from regard.models.device import find_device
from regard.models.shapes import fits
from regard.nn.fused import install
from regard.nn.lora import merged
from regard.nn.quantized import QuantizationConfig, quantize
from regard.runs import Checkpoint, Run
from regard.runs.folder import TOKENIZER


class TrainedModel(NamedTuple):
    """The model of a checkpoint, whatever it reads."""

    model: Model
    tokenizer: Tokenizer | None  # None: it reads no text
    step: int
    data_sha256: str | None = None  # of the training data

    def check_data(self, data: Data) -> None:
        """Refuse data that the model was not trained on: its token ids or classes would mean something else."""
        if self.data_sha256 not in (None, data.sha256):
            raise UserError(f"{data.name} is not what this run was trained on; put the old files back")


class LoadedModel(NamedTuple):
    """The model of a checkpoint with its tokenizer."""

    model: Model
    tokenizer: Tokenizer
    step: int
    data_sha256: str | None = None  # of the training data

    def check_data(self, data: Data) -> None:
        """Refuse data that the model was not trained on."""
        TrainedModel(*self).check_data(data)

    def generate(
        self, prompt: str = "\n", tokens: int = 200, *, seed: int = 1, stop: Sequence[str] = (), **sampling: Any
    ) -> str:
        """The continuation of ``prompt``: at most ``tokens`` new tokens, up to the first of the strings ``stop``.

        ``sampling`` are the parameters of ``Sampling``: temperature (0 is greedy), top_k, top_p, min_p, repetition.
        The same seed gives the same text, the one that `regard generate` prints.
        """
        if not isinstance(self.model, LanguageModel):
            raise UserError(
                f"a {type(self.model).__name__} generates no text; load the run of a language model, or translate with "
                "`regard translate`"
            )
        if not isinstance(prompt, str):
            several = "regard.TextGenerator generates several texts (docs/python.md)"
            raise UserError(f"generate: the prompt is one text, not a {type(prompt).__name__}; {several}")
        try:
            options = Sampling(**sampling)
        except (TypeError, ValueError) as error:  # an unknown name, or an impossible value
            names = ", ".join(field.name for field in fields(Sampling))
            raise UserError(f"generate: {error}; it takes tokens, seed, stop, {names}") from error
        generator = TextGenerator(
            self.model, self.tokenizer, options, tokens, seed, (stop,) if isinstance(stop, str) else tuple(stop)
        )
        ids = tuple(self.tokenizer.encode(prompt).tolist())
        if not ids:
            raise UserError("the prompt is empty; give at least one character")
        return generator.texts([Prompt(ids)])[0].text


def load(run: str | Path, device: torch.device | str = "cpu", step: int | None = None) -> LoadedModel:
    """The trained model of a run folder and its tokenizer; see ``load_model``.

    ``device`` is "cpu", "cuda", "cuda:1", "mps", or "auto" for the fastest that is available.
    """
    device = find_device(device, option="device") if isinstance(device, str) else device
    return load_model(Run.open(Path(run)), device, step)


def load_model(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> LoadedModel:
    """The model of the checkpoint at ``step``, or of the newest intact one, in evaluation mode, and its tokenizer."""
    model, tokenizer, reached, sha256 = load_trained(run, device, step)
    if tokenizer is None:
        raise UserError(
            f"{run.path} reads {model.config.reads}, and this needs a model of text; regard predict {run.path} FILE"
        )
    return LoadedModel(model, tokenizer, reached, sha256)


def load_trained(run: Run, device: torch.device | str = "cpu", step: int | None = None) -> TrainedModel:
    """The same for any model: one that reads no text has no tokenizer."""
    model, checkpoint = load_weights(run, step)
    about = (checkpoint.step, checkpoint.state.get("data"))
    if not model.config.tokenized:
        return TrainedModel(model.to(device).eval(), None, *about)
    if not run.file(TOKENIZER).exists():
        raise UserError(f"{run.path} has no {TOKENIZER}; import the model again from a folder that has one")
    lossless = not isinstance(model.text_reader, Encoder) and not (run.imported and isinstance(model, Seq2SeqModel))
    tokenizer = load_tokenizer(run.file(TOKENIZER), run.read(TOKENIZER), lossless=lossless)
    if tokenizer.size > model.config.vocabulary:
        raise UserError(
            f"{run.file(TOKENIZER)} has {tokenizer.size:,} tokens, but the model {model.config.vocabulary:,}; restore "
            "it from a copy"
        )
    return TrainedModel(model.to(device).eval(), tokenizer, *about)


def load_weights(run: Run, step: int | None = None) -> tuple[Model, Checkpoint]:
    """The model of the checkpoint at ``step``, or of the newest intact one, on the CPU."""
    checkpoint = run.latest() if step is None else run.checkpoint(step)
    if checkpoint is None:
        why = f" ({'; '.join(run.damaged)})" if run.damaged else ""
        command = f"regard resume {run.path}{with_options()}"
        raise UserError(f"the run {run.path} has no checkpoint yet{why}; train it first: {command}")
    return restored(run, run.load(ModelConfig, "model"), checkpoint), checkpoint


def restored(run: Run, config: ModelConfig, checkpoint: Checkpoint) -> Model:
    """The model of a run's config with the weights of a checkpoint; quantized layers stay quantized."""
    check_fit(run, config, checkpoint)
    model = config.build()
    if "quantization" in run.config:
        quantize(model, run.load(QuantizationConfig, "quantization"), empty=True)
        install(model)
    try:
        model.load_state_dict(merged(checkpoint.model()))
    except RuntimeError as error:  # PyTorch's error for names and shapes that do not match
        raise _misfit(run) from error
    return model


def check_fit(run: Run, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Refuse a model that the checkpoint's weights do not fit, before memory is allocated for it."""
    if not fits(config, checkpoint.shapes(), quantized="quantization" in run.config):
        raise _misfit(run)


def _misfit(run: Run) -> UserError:
    config = run.file("config.toml")
    return UserError(f"the checkpoint does not fit {config}; undo the change to it, or train a new run")
