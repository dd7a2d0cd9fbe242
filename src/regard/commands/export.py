"""`regard export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CheckpointOptions
from regard.config import argument
from regard.errors import UserError
from regard.runs.folder import TOKENIZER


@dataclass(frozen=True)
class ExportOptions(CheckpointOptions):
    """Options of `regard export`."""

    out: Path = argument(Path("exported"), "the folder to write")


def export(options: ExportOptions) -> int:
    """Write a run's model in the hub's layout, for `AutoModel.from_pretrained` and other programs."""
    run = options.open()
    if options.out.exists():
        raise UserError(f"{options.out} exists already; choose another folder")
    from regard.convert.hub import write_hub
    from regard.data import DataConfig, ImportedConfig
    from regard.generate.load import load_model

    loaded = load_model(run, step=options.step)
    origin = run.load(DataConfig, "data")
    specials = origin.specials if isinstance(origin, ImportedConfig) else None
    fields = write_hub(options.out, loaded.model.config, loaded.model, run.file(TOKENIZER), specials)
    text = f"{options.out}: a {fields['model_type']} of step {loaded.step:,}"
    options.show({"out": str(options.out), "step": loaded.step, "config": fields}, text)
    return 0
