"""`regard import`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from regard.commands.common import RUNS, CommandOptions
from regard.config import argument, option, to_toml
from regard.errors import UserError
from regard.runs import Run, environment
from regard.runs.folder import TOKENIZER


@dataclass(frozen=True)
class ImportOptions(CommandOptions):
    """Options of `regard import`."""

    source: str | None = argument(None, "a folder in the hub's layout, or a .gguf file")
    name: str | None = argument(None, "the run's name; default: that of the source")
    runs: Path = option(RUNS, "the folder that holds runs")
    ignore: tuple[str, ...] = option((), "a field of config.json that does not matter; may be repeated", repeated=1)


def import_(options: ImportOptions) -> int:
    """Import a published model into a run folder, and certify that every tensor was used.

    The source is data and nothing in it is run: config.json is read through a list of known fields, weights from
    safetensors or GGUF files only.
    """
    if options.source is None:
        raise UserError("name the model: a folder with config.json and model.safetensors, or a .gguf file")
    source = Path(options.source)
    if not source.exists():
        raise UserError(f"there is no {source}; give a folder in the hub's layout, or a .gguf file")
    Run.check(options.runs, options.name)
    from regard.convert.gguf_models import read_gguf
    from regard.convert.hub import read_hub
    from regard.data import load_tokenizer
    from regard.train import Experiment

    config, weights, certificate, tokenizer, chat = (
        read_hub(source, options.ignore) if source.is_dir() else read_gguf(source)
    )
    model = config.build()
    model.load_state_dict(weights)
    experiment = replace(Experiment(), model=config)
    run = Run.create(options.runs, options.name, to_toml(experiment), environment(), prefix=source.resolve().stem)
    try:
        with run.lock():
            if tokenizer is not None:
                run.add(TOKENIZER, lambda path: path.write_text(tokenizer, encoding="utf-8"))
                load_tokenizer(run.file(TOKENIZER))
            if chat is not None:
                run.add("chat.json", lambda path: path.write_text(json.dumps(chat), encoding="utf-8"))
            state = {"position": 0, "tokens": 0, "seconds": 0.0, "scaler": {}, "data": None}
            run.save(0, model.state_dict(), {}, state)
    except BaseException:
        run.discard()
        raise
    use = f"regard chat {run.path}" if chat else f"regard generate {run.path} --prompt ..."
    text = f"{certificate}\nimported into {run.path}; try: {use}"
    options.show({"run": str(run.path), **asdict(certificate)}, text)
    return 0
