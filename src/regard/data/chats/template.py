"""Chat templates: a conversation as the text that a model was tuned on.

A template of a published model is Jinja, which is code: it is rendered in Jinja's sandbox, with the loops, methods and
filters that templates need and no others, so that a received file can neither reach anything nor run for long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment

Message = Mapping[str, str]  # role ("system", "user" or "assistant") and content

LOOPS = 3  # how deep they may be nested
LONGEST = 1 << 20  # characters of a template
METHODS = "strip lstrip rstrip split startswith endswith upper lower title replace get items keys values"
FILTERS = (
    "trim tojson length join upper lower first last default d string list replace int select reject selectattr "
    "rejectattr map safe items title capitalize"
)


@dataclass(frozen=True)
class ChatFormat:
    """A template, its special tokens, and the strings at which an answer ends."""

    template: str
    bos: str = ""
    eos: str = ""
    stops: tuple[str, ...] = ()

    def render(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """The text of a conversation; ``answer``: up to where the assistant's answer begins."""
        from jinja2 import TemplateError

        try:
            template = _environment().from_string(_checked(self.template))
            return template.render(
                messages=list(messages),
                add_generation_prompt=answer,
                bos_token=self.bos,
                eos_token=self.eos,
                tools=None,
            )
        except (TemplateError, TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise UserError(f"the chat template cannot be rendered: {error}") from error

    def to_json(self) -> str:
        """The content of a run's `chat.json`."""
        return json.dumps({"template": self.template, "bos": self.bos, "eos": self.eos, "stops": list(self.stops)})

    @classmethod
    def read(cls, content: bytes) -> ChatFormat:
        """The format in a run's `chat.json`."""
        try:
            found = json.loads(content)
            texts = [found[name] for name in ("template", "bos", "eos")]
            stops = tuple(found["stops"])
            if not all(isinstance(text, str) for text in (*texts, *stops)):
                raise ValueError("its entries are not texts")
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"chat.json is damaged ({error}); import the model again") from error
        return cls(texts[0], texts[1], texts[2], stops)


def _checked(template: str) -> str:
    if len(template) > LONGEST:
        raise UserError(f"the chat template has {len(template):,} characters, and {LONGEST:,} is the most")
    return template


def _environment() -> Environment:
    """Jinja's sandbox, with less in it."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateSyntaxError
    from jinja2.runtime import Context, LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**", "%"))

        def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
            if (
                not all(isinstance(value, int | float) and abs(value) < 1e9 for value in (left, right))
                or operator == "**"
            ):
                raise SecurityError(f"{operator} of other things than numbers is not allowed")
            return super().call_binop(context, operator, left, right)

        def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
            plain = isinstance(obj, LoopContext | Namespace) or attr in METHODS.split()
            return plain and super().is_safe_attribute(obj, attr, value)

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            parsed = super()._parse(source, name, filename)
            _check_loops(parsed, 0)
            return parsed

    def _check_loops(node: nodes.Node, depth: int) -> None:
        for child in node.iter_child_nodes():
            if isinstance(child, nodes.Macro | nodes.CallBlock | nodes.Include | nodes.Import | nodes.Extends):
                raise TemplateSyntaxError("macros and other templates are not allowed", child.lineno)
            inner = depth + isinstance(child, nodes.For)
            if inner > LOOPS:
                raise TemplateSyntaxError(f"loops are nested more than {LOOPS} deep", child.lineno)
            _check_loops(child, inner)

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters = {name: value for name, value in made.filters.items() if name in FILTERS.split()}
    made.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    made.globals = {"raise_exception": raise_exception, "namespace": made.globals["namespace"]}
    made.globals |= {"strftime_now": lambda _: "", "range": lambda *n: range(*n)[:100]}
    return made
