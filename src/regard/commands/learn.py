"""`regard learn`."""

import json
import re
import webbrowser
from dataclasses import dataclass
from html import escape
from pathlib import Path

from regard.commands.common import CommandOptions, in_columns
from regard.config import argument, option
from regard.errors import UserError


@dataclass(frozen=True)
class LearnOptions(CommandOptions):
    """Options of `regard learn`."""

    page: str | None = argument(None, "the page to open, such as attention or lab; default: the index")
    out: Path | None = option(None, "the folder for the pages and the notebooks; default: one in the cache")
    browser: bool = option(True, "only write the pages and print where they are")


def learn(options: LearnOptions) -> int:
    """Open the notes offline: every formula with code that runs, the questions with answers, and the notebooks."""
    from regard.data.origins.cache import cache_folder
    from regard.runs.disk import replace_files

    sources = find_sources()
    titles = {name: title_of(path) for name, path in sources.items()}
    page = options.page or "index"
    if page not in sources:
        raise UserError(f"the notes have no page {page!r}; there are {', '.join(sources)}")
    folder = options.out or cache_folder() / "notes"
    files = {f"{name}.html": document(name, titles, sources) for name in sources}
    files |= {path.name: text(path) for path in sources.values() if path.suffix == ".ipynb"}
    replace_files(folder, files)
    pictures = [path for one in sources.values() for path in one.parent.glob("pictures/*.svg")]
    replace_files(folder / "pictures", {path.name: text(path) for path in pictures})  # that the notebooks show
    opened = (folder / f"{page}.html").resolve()
    if options.browser:
        webbrowser.open(opened.as_uri())
    options.show({"page": str(opened), "pages": titles}, f"{in_columns(titles)}\n{opened}")
    return 0


def find_sources() -> dict[str, Path]:
    """The pages and notebooks by name, in the order of the index; in a clone they are in docs/."""
    package = Path(__file__).parents[1]
    docs = next((one for one in (package / "docs", package.parents[1] / "docs") if (one / "notes").is_dir()), None)
    if docs is None:
        raise UserError("this installation has no notes; install regard again, or clone its repository")
    index = text(docs / "notes" / "index.md")
    found = {path.stem: path for path in [*docs.glob("notes/*.md"), *docs.glob("notebooks/*.ipynb")]}
    return dict(sorted(found.items(), key=lambda one: (one[0] != "index", index.find(f"{one[1].name})") % 10**9, one)))


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def markdown_of(path: Path) -> str:
    """The Markdown of a page; that of a notebook has its cells of code between fences."""
    if path.suffix == ".md":
        return text(path)
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text(path))["cells"]]
    return "\n\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells)


def title_of(path: Path) -> str:
    """The first heading."""
    return markdown_of(path).partition("\n")[0].lstrip("# ")


def link(name: str, titles: dict[str, str], here: bool = False) -> str:
    """A link to a page; ``here``: the one that is shown."""
    current = ' aria-current="page"' if here else ""
    return f'<a href="{name}.html"{current}>{escape(titles[name].partition(":")[0])}</a>'


def document(name: str, titles: dict[str, str], sources: dict[str, Path]) -> str:
    """The HTML of a page, with links to all others."""
    from regard.pages import html
    from regard.pages.markdown import colors, markup
    from regard.pages.svg import stylesheet

    def address(target: str) -> str | None:
        """Links between the notes, and to the web; the rest of the documentation is not here."""
        file, _, anchor = target.partition("#")
        path = Path(file)
        if re.match(r"https?://", target) or not file:
            return target
        known = path.stem in sources and sources[path.stem].name == path.name
        return f"{path.stem}.html{'#' * bool(anchor)}{anchor}" if known else None

    source = sources[name]
    pages, notebooks = (
        " ".join(link(one, titles, one == name) for one in titles if sources[one].suffix == kind)
        for kind in (".md", ".ipynb")
    )
    order = list(titles)
    after = order[order.index(name) + 1 :][:1]
    onward = "".join(f'<nav class="on">Next: {link(one, titles)}</nav>' for one in after)
    saved = f'<p><a href="{source.name}">{source.name}</a> opens in Jupyter.</p>' if source.suffix == ".ipynb" else ""
    body = (
        f"<main><nav>{pages}<br>Notebooks: {notebooks}</nav>"
        f"{saved}{markup(markdown_of(source), source.parent, address)}{onward}</main>"
    )
    return html.document(titles[name], stylesheet("theme", "page", "markdown") + colors(), body)
