"""`regard import`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, CommandOptions
from regard.config import argument, option, to_toml
from regard.errors import UserError
from regard.runs import Run
from regard.runs.folder import CHAT, TOKENIZER
from regard.runs.made import make_run
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.convert.keys import ImportCertificate
    from regard.convert.weights import Imported


@dataclass(frozen=True)
class ImportOptions(CommandOptions):
    """Options of `regard import`."""

    source: str | None = argument(
        None, "a name of `regard models`, a folder in the hub's layout, a .tar of one, a .gguf or an .onnx file"
    )
    name: str | None = argument(None, "the run's name; default: that of the source")
    runs: Path = option(RUNS, "the folder that holds runs")
    ignore: tuple[str, ...] = option((), "a field of config.json that does not matter; may be repeated", repeated=1)


def import_(options: ImportOptions) -> int:
    """Import a published model into a run folder, and certify that every tensor was used.

    The source is data and nothing in it is run: config.json is read through a list of known fields, weights from
    safetensors, GGUF or ONNX files only. An ONNX file needs config.json beside it, or in the folder above the folder
    onnx. `regard models` lists models that are fetched by name. If the `transformers` library is installed, the
    certificate of a folder has the largest difference to it after each layer.
    """
    from regard.convert.published import MODELS, find_model
    from regard.models import ModelConfig

    name = options.source or next(iter(MODELS))
    source = Path(name)
    if not source.exists():
        source = find_model(name).fetch() if name in MODELS or source.name == name else source
    if not source.exists():
        raise UserError(f"there is no {source}; give a folder in the hub's layout, or a .gguf or .onnx file")
    run, certificate = imported_run(source, options.name, options.runs, options.ignore)
    use = f"regard chat {run.path}" if run.file(CHAT).exists() else f"regard generate {run.path} --prompt ..."
    model = run.load(ModelConfig, "model")
    use = use if model.generates else f"regard embed {run.path} --search ..."
    use = f"regard predict {run.path} IMAGE" if model.reads == "images" else use
    if run.table("data").get("begin") is not None:
        sound = run.table("model").get("source", {}).get("kind") == "audio"
        use = f"regard transcribe FILE.wav --run {run.path}" if sound else f"regard translate {run.path} TEXT"
    text = f"{certificate}\nimported into {run.path}; try: {use}"
    options.show({"run": str(run.path), **asdict(certificate)}, text)
    return 0


def _compare(folder: Path, given: Imported) -> None:
    """Add the differences to `transformers` by layer; a model that it cannot load is imported all the same."""
    from regard.convert.compare import layer_differences

    try:
        given.certificate.differences |= layer_differences(folder, given)
    except Exception as error:
        print(f"transformers does not load {folder.name} ({type(error).__name__}: {error})", file=sys.stderr)


def imported_run(
    source: Path, name: str | None, runs: Path, ignore: tuple[str, ...] = ()
) -> tuple[Run, ImportCertificate]:
    """A new run with the weights of a published model, and the certificate of the import."""
    Run.check(runs, name)
    from regard.convert.read import read_model
    from regard.data import ImportedConfig, load_tokenizer
    from regard.models.base import Encoder, LanguageModel
    from regard.tasks import ImageClassificationConfig, MaskedTokensConfig
    from regard.train import Experiment

    with waiting(f"reading {source}"):
        given = read_model(source, ignore, _compare)
        model = given.config.build()
        model.load_state_dict(given.weights)
    specials = given.specials._asdict() if given.specials else {}
    origin = ImportedConfig(source.name, given.certificate.sha256, **specials, **(given.forbidden or {}))
    experiment = replace(Experiment(), model=given.config, data=origin)
    if isinstance(model, Encoder):
        experiment = replace(experiment, task=MaskedTokensConfig())
    if given.config.reads == "images":
        experiment = replace(experiment, task=ImageClassificationConfig())
    files = {}
    if given.tokenizer is not None:
        files[TOKENIZER] = given.tokenizer.encode()
        load_tokenizer(source, files[TOKENIZER], lossless=isinstance(model, LanguageModel))
    if given.chat is not None:
        files[CHAT] = json.dumps(given.chat).encode()
    prefix = source.resolve().stem
    run = make_run(runs, name, to_toml(experiment), model.state_dict(), files, prefix=prefix)
    return run, given.certificate
