"""`regard embed`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import CheckpointOptions, check_parent
from regard.commands.lines import read_lines
from regard.config import option
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.generate.pairs import PairVectors
    from regard.generate.sentences import SentenceEncoder
    from regard.runs import Run


@dataclass(frozen=True)
class EmbedOptions(CheckpointOptions):
    """Options of `regard embed`."""

    text: tuple[str, ...] = option((), "a text; may be repeated", repeated=1)
    file: str | None = option(None, "a file with a text on each line; - is standard input", metavar="FILE")
    images: Path | None = option(None, "an image or a folder of them, instead of texts: for two towers", metavar="PATH")
    search: str | None = option(None, "rank the texts or images by how close they are to this text in meaning")
    top: int = option(10, "how many results of a search to print")
    out: Path | None = option(None, "write the vectors to this .npy file instead of printing them", metavar="FILE")


def embed(options: EmbedOptions) -> int:
    """Turn texts into vectors by an encoder, or search them by meaning; images too, by two towers (emoji-clip).

    A vector of a text is the mean of its tokens' features. All have the length 1, so that dot products are cosines.
    """
    options.check_at_least_one("top")
    texts = [text for text in (*options.text, *([] if options.file is None else read_lines(options.file))) if text]
    if texts and options.images is not None:
        raise UserError("give texts or --images, not both; --search TEXT ranks images by a text")
    if not texts and options.images is None:
        raise UserError("there are no texts; give --text TEXT, or --file FILE with a text on each line")
    check_parent(options.out)
    if options.out is not None and options.out.suffix != ".npy":
        raise UserError(f"--out {options.out}: vectors are written to a NumPy file; let its name end in .npy")
    run = options.open()
    encoder = load_encoder(options, run)
    if options.images is None:
        vectors = encoder.vectors(texts)
    else:
        texts, vectors = embed_images(encoder, run, options.images)
    if options.out is not None:
        import numpy as np

        np.save(options.out, vectors.numpy())
    if options.search is not None:
        scores = vectors @ encoder.vectors([options.search])[0]
        order = scores.argsort(descending=True, stable=True)[: options.top].tolist()
        found = [{"line": row + 1, "score": float(scores[row]), "text": texts[row]} for row in order]
        text = "\n".join(f"{one['score']:6.3f}  {one['text']}" for one in found)
        options.show({"run": str(run.path), "search": options.search, "found": found}, text)
    elif options.out is not None:
        shape = list(vectors.shape)
        options.show({"out": str(options.out), "shape": shape}, f"{options.out}: {shape[0]:,} vectors of {shape[1]:,}")
    else:
        rows = vectors.tolist()
        options.show({"run": str(run.path), "vectors": rows}, "\n".join(json.dumps(row) for row in rows))
    return 0


def load_encoder(options: EmbedOptions, run: Run) -> SentenceEncoder | PairVectors:
    """What makes the vectors: an encoder of texts, or two towers."""
    from regard.generate.pairs import PairVectors
    from regard.generate.sentences import SentenceEncoder
    from regard.models.base import Encoder, Model, PairEncoder

    model, loaded = options.load(run, Model, "")
    if isinstance(model, PairEncoder):
        return PairVectors(model, loaded.tokenizer)
    if not isinstance(model, Encoder):
        raise UserError(f"{run.path} is a {type(model).__name__}; vectors are made by an encoder")
    return SentenceEncoder(model, loaded.tokenizer)


def embed_images(encoder: SentenceEncoder | PairVectors, run: Run, path: Path) -> tuple[list[str], Tensor]:
    """The names of images and their vectors."""
    from regard.data import DataConfig
    from regard.generate.pairs import PairVectors

    if not isinstance(encoder, PairVectors):
        raise UserError(f"{run.path} reads texts only; images are for two towers: regard train emoji-clip")
    examples = run.load(DataConfig, "data").read_examples(path.expanduser(), encoder.model.config)
    return [one.name for one in examples], encoder.images(examples)
