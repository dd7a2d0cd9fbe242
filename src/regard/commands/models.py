"""`regard models`."""

from __future__ import annotations

from dataclasses import dataclass

from regard.commands.data import DataOptions, act


@dataclass(frozen=True)
class ModelsOptions(DataOptions):
    """Options of `regard models`."""


def models(options: ModelsOptions) -> int:
    """List the published models that can be imported by name; fetch, verify or remove one.

    Models are fetched once into the cache (the folder REGARD_CACHE, if that is set) and verified by SHA-256.
    """
    from regard.convert.published import MODELS, find_model

    chosen = None if options.name is None else find_model(options.name)
    use = "talk with one: regard chat NAME; import it: regard import NAME; your own: regard import FOLDER or FILE"
    return act(options, "models", chosen, list(MODELS.values()), use)
