"""`regard.show(model, text)`: the page inside a notebook, without a server."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.generate.load import LoadedModel
from regard.look.views.session import Session
from regard.runs import Run
from regard.serve.file import document
from regard.serve.limits import FILE

HEIGHT = 720  # pixels


class Shown:
    """One self-contained document; a notebook draws it in a frame that can reach nothing around it."""

    def __init__(self, html: str, height: int = HEIGHT):
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(self.html)}" title="attention" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write it as a file."""
        Path(path).write_text(self.html, encoding="utf-8")
        return Path(path)


def show(
    model: Any, text: str, other: str | None = None, *, tokenizer: Any = None, height: int = HEIGHT, most: int = FILE
) -> Shown:
    """What a model looks at when it reads a text.

    Args:
        model: A run (its folder, its name in `runs`, or a `Run`), a `LoadedModel` or `Session`, or a language model
            with its `tokenizer`.
        text: What it reads; a source, for a model that translates.
        other: The translation of that source.
        tokenizer: Makes tokens of the text, where `model` is a bare module.
        height: Pixels of the frame in a notebook.
        most: Bytes of data; a long text is shown more coarsely.
    """
    session = _session(model, tokenizer)
    return Shown(document(session.trace(text, other), type(session.model).__name__, text, most), height)


def _session(model: Any, tokenizer: Any) -> Session:
    if isinstance(model, Session):
        return model
    if isinstance(model, (str, Path)):
        named = Path("runs") / model
        model = Run.open(named if not Path(model).exists() and named.is_dir() else Path(model))
    if isinstance(model, Run):
        return Session.load(model)
    if isinstance(model, LoadedModel):
        model, tokenizer = model.model, model.tokenizer
    if tokenizer is None:
        raise UserError("a bare model knows no text; give its tokenizer too: regard.show(model, text, tokenizer=...)")
    return Session(model, tokenizer)
