"""`regard describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard.commands.common import CommandOptions
from regard.commands.train import read_experiment
from regard.config import argument, dump

SIZES = ("layers", "heads", "width", "context", "vocabulary")


@dataclass(frozen=True)
class DescribeOptions(CommandOptions):
    """Options of `regard describe`."""

    recipe: str = argument("shakespeare", "a recipe's name or a TOML file; its model is described")


def describe(options: DescribeOptions, keys: Mapping[str, object]) -> int:
    """Count a model's parameters, memory and FLOPs without building it.

    Keys of the model are options, as for `regard train`:

      --model gpt3-175b                        a preset; `regard train --help` lists them
      --model gpt2-medium --model.layers 2     a preset, and a key that differs
      --model.vocabulary 50257                 the vocabulary, which in training follows from the data
    """
    model = read_experiment(options.recipe, keys).model
    from regard.models import describe as count
    from regard.pages.numbers import unit

    counted = count(model)
    sizes_of = {name: unit(counted[f"bytes_{name}"], "B") for name in ("float32", "bfloat16")}
    table = dump(model)
    sizes = ", ".join(f"{name} {table[name]:,}" for name in SIZES if name in table)
    what = "token" if model.reads == "text" else "example"
    lines = [
        f"{model.kind}: {sizes}",
        f"parameters         {counted['parameters']:,}, of them {counted['parameters_in_blocks']:,} in blocks",
        f"weights            {sizes_of['float32']} in float32, {sizes_of['bfloat16']} in bfloat16",
        f"KV cache           {counted['cache_elements_per_token']:,} numbers per token",
        f"training           {unit(counted['flops_per_token'], 'FLOP')} per {what}, at a context of {model.context:,}",
    ]
    options.show({"model": table, **counted}, "\n".join(lines))
    return 0
