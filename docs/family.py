"""Write docs/family.md from the registered components: python docs/family.py."""

from __future__ import annotations

from pathlib import Path

import regard.models  # noqa: F401 (registers the components)
from regard.attention import AttentionConfig, NormalizerConfig
from regard.config.choice import Choice, kinds
from regard.config.table import table_of
from regard.nn import BlockConfig, FeedForwardConfig, PositionConfig, ProjectionConfig
from regard.nn.positions.scaling import ScalingConfig

HERE = Path(__file__).parent
HEAD = """# Model components
Every component of a model is a config option: `--model.attention window --model.attention.size 64`, or in TOML
`attention = {kind = "window", size = 64}`. `regard recipes shakespeare` lists every option with its meaning.
All components but `linformer` decode token by token and give the same results in padded and packed batches; random
models of all kinds test this (`tests/laws/gpts.py`). Unsupported combinations are refused with an error that names the
reason. `python docs/family.py` writes this page.
"""
SECTIONS: dict[str, tuple[str, type[Choice]]] = {
    "Attention": ("attention", AttentionConfig),
    "Normalizers": ("attention.normalizer", NormalizerConfig),
    "Position encodings": ("position", PositionConfig),
    "Scalings of rotary positions": ("position.scaling", ScalingConfig),
    "Projections": ("projection", ProjectionConfig),
    "Blocks": ("block", BlockConfig),
    "Feed-forward networks": ("feedforward", FeedForwardConfig),
}


def table(base: type[Choice]) -> list[str]:
    """One row per kind: name, first line of the docstring, options."""
    rows = ["| kind | description | options |", "|---|---|---|"]
    for kind, config in kinds(base).items():
        about = (config.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
        options = ", ".join(f"`{name}`" for name in table_of(config).fields)
        rows.append(f"| `{kind}` | {about} | {options} |")
    return rows


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, (option, base) in SECTIONS.items():
        parts.append("\n".join([f"## {title}: `--model.{option}`", "", *table(base), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    (HERE / "family.md").write_text(page(), encoding="utf-8")
