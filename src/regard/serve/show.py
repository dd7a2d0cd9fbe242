"""`regard.show(model, text)`: the page inside a notebook, without a server."""

from html import escape
from pathlib import Path

from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.generate.load import LoadedModel
from regard.look.views.session import Session
from regard.models import Model
from regard.runs import Run
from regard.serve.html_file import html_document
from regard.serve.limits import FILE

HEIGHT = 720  # pixels
ModelSource = str | Path | Run | LoadedModel | Session | Model


class NotebookPage:
    """A self-contained HTML document; notebooks display it in a sandboxed frame."""

    def __init__(self, html: str, height: int = HEIGHT):
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(self.html)}" title="attention" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the document to a file."""
        Path(path).write_text(self.html, encoding="utf-8")
        return Path(path)


def show(
    model: ModelSource,
    text: str,
    target: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    height: int = HEIGHT,
    limit: int = FILE,
) -> NotebookPage:
    """Show the attention of a model for a text.

    Args:
        model: A run (its folder, its name in `runs`, or a `Run`), a `LoadedModel`, a `Session`, or a language model
            together with its ``tokenizer``.
        text: The input text; for a translation model, the source.
        target: The target text of a translation model.
        tokenizer: The tokenizer, if ``model`` is a module.
        height: Height of the frame in a notebook, in pixels.
        limit: Bytes of embedded data; a long text is shown at a lower resolution.
    """
    session = _make_session(model, tokenizer)
    document = html_document(session.trace(text, target), type(session.model).__name__, text, limit)
    return NotebookPage(document, height)


def _make_session(model: ModelSource, tokenizer: Tokenizer | None) -> Session:
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
        raise UserError("a module has no tokenizer; pass one: regard.show(model, text, tokenizer=...)")
    return Session(model, tokenizer)
