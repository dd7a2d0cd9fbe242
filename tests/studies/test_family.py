"""The family side by side: losses where a part works, the reason where it is refused, and words that follow."""

from __future__ import annotations

from typing import Any

import pytest

from regard.studies import family
from regard.studies.page import page

FEW = {
    "attention": {
        "softmax": {},
        "linear": {"model.attention": "linear"},
        "linformer": {"model.attention": "linformer"},
    },
    "feed-forward": {"moe": {"model.feedforward": "moe"}},
}


@pytest.mark.slow
def test_a_few_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "GROUPS", FEW)
    monkeypatch.setattr(family, "BATCHES", 2)
    lines: list[str] = []
    found = family.study(0.01, 1, lines.append)
    assert len(lines) == 5  # the other seed, and four members
    assert "causal" in found.numbers["found"]["attention"]["linformer"]
    assert all(0 < loss < 5 for loss in (found.numbers["found"]["attention"][n][0] for n in ("softmax", "linear")))
    assert any("Refused: linformer" in line for line in found.answer)
    assert "linear" in page("family", "?", found)


def test_every_member_is_a_config_that_can_be_built_or_says_why() -> None:
    from regard.config import override
    from regard.errors import UserError
    from regard.recipes import get

    for members in family.GROUPS.values():
        for name, given in members.items():
            experiment = override(get("shakespeare"), given).checked()
            try:
                experiment.model.build()
            except UserError as problem:
                assert name == "linformer", problem  # noqa: PT017


def test_every_component_and_option_is_on_its_page() -> None:
    import importlib.util
    from dataclasses import fields
    from pathlib import Path

    from regard.config.choice import kinds

    folder = Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("family_page", folder / "family.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (folder / "family.md").read_text(encoding="utf-8")
    for option, base in generator.SECTIONS.values():
        section = text.split(f"`--model.{option}`")[1].split("\n## ")[0]
        members: dict[str, Any] = kinds(base)
        for kind, config in members.items():
            if not config.__module__.startswith("regard."):  # a part of another test
                continue
            line = next((line for line in section.splitlines() if line.startswith(f"| `{kind}` |")), None)
            assert line, f"{kind} is not in docs/family.md; run python docs/family.py"
            assert all(f"`{field.name}`" in line for field in fields(config)), f"run python docs/family.py: {line}"
