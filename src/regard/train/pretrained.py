"""Where the weights come from: a run, a published model, or a folder in the hub's layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.convert.lazy import LazyTensors
from regard.convert.published import MODELS
from regard.convert.read import read_model
from regard.data import Data, Tokenizer, load_tokenizer
from regard.data.chats.template import ChatFormat
from regard.data.origins.progress import say
from regard.errors import UserError
from regard.models.base import LanguageModel, Model, ModelConfig
from regard.models.shapes import build_on_meta
from regard.models.towers import TwoTowersConfig
from regard.nn.heads import NoHeadConfig
from regard.nn.lora import A, merged
from regard.runs import Checkpoint, Run
from regard.runs.folder import CHAT, TOKENIZER
from regard.runs.shards import MODEL
from regard.train.adapt import HEAD
from regard.train.experiment import Experiment
from regard.train.seeding import ADAPTERS, WEIGHTS, derive_seed


class Pretrained(NamedTuple):
    """A trained model to start from."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer | None  # None: the model reads no text
    chat: ChatFormat | None = None


def pretrained(name: str, model: ModelConfig | None = None) -> Pretrained:
    """The model of a run (its folder, or its name in `runs`), of `regard models`, or of a folder or file to import.

    For ``model``, two towers, there may be two of them, as in ``efficientnet-lite0+minilm``.
    """
    if isinstance(model, TwoTowersConfig) and name.count("+") == 1:
        return _two_towers(model, *name.split("+"))
    for folder in (Path(name), Path("runs") / name):
        if os.path.isfile(folder / "config.toml"):
            return _of_run(Run.open(folder))
    source = MODELS[name].fetch() if name in MODELS else Path(name)
    if not source.exists():
        raise UserError(f"there is no run, model or folder {name!r} to start from; `regard models` lists models")
    given = read_model(source)
    if given.config.reads != "text":
        return Pretrained(given.config, given.weights, None)
    if given.tokenizer is None:
        raise UserError(f"{name} has no tokenizer.json, so that no text can be prepared for it; put it there")
    data = given.tokenizer.encode()
    tokenizer = load_tokenizer(source, data, lossless=_generates(given.config))
    chat = None if given.chat is None else ChatFormat.read(json.dumps(given.chat).encode())
    return Pretrained(given.config, given.weights, tokenizer, chat)


def _two_towers(model: TwoTowersConfig, *names: str) -> Pretrained:
    """A model for images and one for texts without their heads; the maps into the common space are new."""
    image, text = (pretrained(name) for name in names)
    towers = {"image": image, "text": text}
    if unfit := [name for name, one in zip(names, towers.values(), strict=True) if "head" not in vars(one.config)]:
        raise UserError(f"{unfit[0]} is no encoder, and the towers are two: --init efficientnet-lite0+minilm")
    configs = {name: replace(one.config, head=NoHeadConfig()) for name, one in towers.items()}  # type: ignore[call-arg]
    weights = {f"{name}.{key}": tensor for name, one in towers.items() for key, tensor in one.weights.items()}
    return Pretrained(replace(model, **configs), weights, text.tokenizer)


def _of_run(run: Run) -> Pretrained:
    checkpoint = run.latest()
    if checkpoint is None:
        raise UserError(f"the run {run.path} has no checkpoint to start from; train it first")
    config = run.load(ModelConfig, "model")
    chat = ChatFormat.read(run.read(CHAT)) if run.file(CHAT).exists() else None
    return Pretrained(config, RunWeights(checkpoint), run_tokenizer(run, config), chat)


class RunWeights(LazyTensors):
    """The weights of a checkpoint, with those of its adapters added to them."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        with checkpoint.opened(MODEL) as stored:
            shapes = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in stored.items()}
        self._places = merged(shapes)

    def __getitem__(self, name: str) -> Tensor:
        self._places[name]  # or a KeyError
        layer = name.removesuffix(".weight")
        with self._checkpoint.opened(MODEL) as stored:
            if f"{layer}.{A}" not in stored:
                return stored[name].whole()
            return merged({key: x.whole() for key, x in stored.items() if key.startswith(f"{layer}.")})[name]


def run_tokenizer(run: Run, config: ModelConfig) -> Tokenizer | None:
    """The tokenizer in the folder of a run; None if its model reads no text."""
    if not config.tokenized:
        return None
    return load_tokenizer(run.file(TOKENIZER), run.read(TOKENIZER), lossless=_generates(config))


def _generates(config: ModelConfig) -> bool:
    return isinstance(build_on_meta(config.reduced()), LanguageModel)


def build_data(experiment: Experiment, run: Run, start: Pretrained | None = None) -> Data:
    """The data of an experiment. One that starts from a trained model has its tokenizer, also kept in the run."""
    if experiment.init is None:
        return experiment.data.build(experiment.model.context)
    tokenizer = run_tokenizer(run, experiment.model) if start is None else start.tokenizer
    return experiment.data.build(experiment.model.context, tokenizer=tokenizer)


def initial_model(experiment: Experiment, start: Mapping[str, Tensor] | None) -> Model:
    """The model of an experiment with its initial weights: random ones, and those of a trained model.

    On the CPU, as its generator gives the same weights for every device.
    """
    torch.manual_seed(derive_seed(experiment.seed, WEIGHTS))
    model = experiment.model.build()
    if start is not None:
        load_weights(model, start, str(experiment.init))
    torch.manual_seed(derive_seed(experiment.seed, ADAPTERS))
    experiment.train.adapt.apply(model)
    return model


@torch.no_grad()
def load_weights(model: Model, given: Mapping[str, Tensor], name: str) -> None:
    """Copy the weights of a trained model; those of another head stay as they are initialized."""
    model.prepare_load(given)
    new = []
    for key, tensor in model.state_dict().items():
        source = given.get(key)  # it may be read from a file here
        if source is not None and source.shape == tensor.shape:
            tensor.copy_(source)
        elif key.partition(".")[0] in HEAD:
            new.append(key)
        else:
            raise UserError(f"{name} does not fit the model: {key} is missing there, or has another shape")
    if new:
        say(f"weights from {name}; new: {', '.join(new)}")
