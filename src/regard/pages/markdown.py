"""Markdown as HTML in the style of the other pages: pictures inside, code in color, nothing fetched."""

import base64
import re
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


def slug(title: str) -> str:
    """The anchor of a heading, as on GitHub and in MkDocs."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def colored(code: str, language: str, attributes: str = "") -> str:
    """The code with the classes of Pygments."""
    return highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)) if language == "python" else escape(code)


def breakable(code: str) -> str:
    """A name in a line of text, which may be broken behind the signs between its parts."""
    return f"<code>{re.sub(r'[/._:]+', lambda found: f'{found[0]}<wbr>', escape(code))}</code>"


def colors() -> str:
    """Pygments' colors for light and dark."""
    light, dark = (HtmlFormatter(style=style).get_style_defs("pre") for style in ("default", "monokai"))
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


def markup(text: str, folder: Path, address: Callable[[str], str | None]) -> str:
    """A page's markup. Pictures are read from ``folder``; ``address`` gives the new target of a link, or None."""
    parser = MarkdownIt("commonmark", {"html": False, "highlight": colored}).enable("table")
    parser.add_render_rule("code_inline", lambda _, tokens, index, *__: breakable(tokens[index].content))
    tokens = parser.parse(text)
    for token, after in pairwise(tokens):
        if token.type == "heading_open":
            token.attrs["id"] = slug(re.sub(r"\]\(.*?\)|[*`\[]", "", after.content))
        for child in token.children or ():
            if child.type == "image":
                picture = folder / str(child.attrs["src"])
                data = base64.b64encode(picture.read_bytes()).decode()
                child.attrs["src"] = f"data:{TYPES[picture.suffix]};base64,{data}"
            elif child.type == "link_open":
                target = str(child.attrs.pop("href"))
                child.attrs |= {"title": target} if (found := address(target)) is None else {"href": found}
    return parser.renderer.render(tokens, parser.options, {})
