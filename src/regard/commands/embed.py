"""`regard embed`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CheckpointOptions, check_parent
from regard.commands.lines import read_lines
from regard.config import option
from regard.errors import UserError


@dataclass(frozen=True)
class EmbedOptions(CheckpointOptions):
    """Options of `regard embed`."""

    text: tuple[str, ...] = option((), "a text; may be repeated", repeated=1)
    file: str | None = option(None, "a file with a text on each line; - is standard input", metavar="FILE")
    search: str | None = option(None, "rank the texts by how close they are to this one in meaning")
    top: int = option(10, "how many texts of a search to print")
    out: Path | None = option(None, "write the vectors to this .npy file instead of printing them", metavar="FILE")


def embed(options: EmbedOptions) -> int:
    """Turn texts into vectors by an encoder, or search them by meaning.

    A vector is the mean of the features of a text's tokens and has the length 1, so that dot products are cosines.
    """
    options.check_at_least_one("top")
    texts = [text for text in (*options.text, *([] if options.file is None else read_lines(options.file))) if text]
    if not texts:
        raise UserError("there are no texts; give --text TEXT, or --file FILE with a text on each line")
    check_parent(options.out)
    if options.out is not None and options.out.suffix != ".npy":
        raise UserError(f"--out {options.out}: vectors are written to a NumPy file; let its name end in .npy")
    run = options.open()
    from regard.generate.sentences import SentenceEncoder
    from regard.models.base import Encoder

    model, loaded = options.load(run, Encoder, "; vectors are made by an encoder")
    encoder = SentenceEncoder(model, loaded.tokenizer)
    vectors = encoder.vectors(texts)
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
