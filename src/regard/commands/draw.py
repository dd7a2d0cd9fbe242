"""`regard generate` for a run that draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import check_parent, naming_options
from regard.errors import UserError
from regard.runs.disk import replace_file

if TYPE_CHECKING:
    from regard.commands.generate import GenerateOptions
    from regard.runs import Run

SCALE = 8  # pixels of the file for each of the image


def draw(options: GenerateOptions, run: Run, prompts: list[str]) -> int:
    """Draw captions into one PNG file: a row for each caption, with its samples."""
    from regard.data.images.folder import png
    from regard.data.scenes.grammar import parse
    from regard.generate import Sampling
    from regard.generate.load import load_trained
    from regard.generate.pictures import pictures
    from regard.models import TextToImage
    from regard.models.device import find_device

    with naming_options():
        sampling = Sampling(options.temperature, options.top_k, options.top_p, options.min_p, options.repetition)
    loaded = load_trained(run, find_device(options.device), options.step)
    if not isinstance(loaded.model, TextToImage):
        raise UserError(
            f"{run.path} reads {loaded.model.config.reads} and generates nothing; give a language model, or "
            f"a file: regard predict {run.path} FILE"
        )
    check_parent(options.out)
    if not prompts:
        raise UserError("give a caption to draw: --prompt 'a red 3 left of a blue 7'")
    captions = [parse(prompt) for prompt in prompts]
    rows = [caption.tokens for caption in captions for _ in range(options.samples)]
    found = pictures(loaded.model, rows, sampling, options.seed).numpy()
    path: Path = run.file("picture.png") if options.out is None else options.out
    replace_file(path, png(found, options.samples, SCALE))
    record = {"run": str(run.path), "step": loaded.step, "captions": list(map(str, captions)), "file": str(path)}
    options.show(record, str(path))
    return 0
