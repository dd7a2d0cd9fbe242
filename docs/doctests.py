"""Shows the examples (>>>) of docstrings as code in the API reference; an extension of mkdocstrings' parser."""

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts fences around every paragraph that begins with >>>."""

    def on_object(self, *, obj: Any, **_: object) -> None:
        if not obj.is_alias and obj.docstring:
            fenced = re.compile(r"^( *)(>>>.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
            obj.docstring.value = fenced.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)
