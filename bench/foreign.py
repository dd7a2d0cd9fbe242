"""Twelve unmodified models of `transformers`, tested with `regard prove`: which of them see the future?

    python -m bench.foreign [--json]
    python -m bench.foreign --all          every class that can be built small; options as of `bench.gallery`

Each is built small, with random weights, from its own configuration; those that can be encoders too are made decoders.
Of transformers 5.12.0 four leak (huggingface/transformers#48745), of 5.22.2 none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

SMALL: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 64}
DECODER = SMALL | {"is_decoder": True}
MODELS: dict[str, dict[str, Any]] = {
    "roformer": DECODER | {"embedding_size": 32},
    "megatron-bert": DECODER,
    "rembert": DECODER | {"input_embedding_size": 32, "output_embedding_size": 32, "embedding_size": 32},
    "big_bird": DECODER | {"attention_type": "original_full"},
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": SMALL | {"num_key_value_heads": 2},
    "opt": SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gpt_neox": SMALL,
    "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "bert": DECODER,
    "electra": DECODER | {"embedding_size": 32},
    "xlm-roberta": DECODER | {"max_position_embeddings": 66},
}


def table() -> dict[str, dict[str, Any]]:
    """The certificate of each model, as data."""
    from regard.prove.foreign import certify_folder

    found = {}
    for kind, sizes in MODELS.items():
        with TemporaryDirectory() as folder:
            special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
            Path(folder, "config.json").write_text(json.dumps({"model_type": kind, **special, **sizes}))
            found[kind] = certify_folder(folder).plain()
    return found


def main() -> None:
    """The command line."""
    if "--all" in sys.argv:
        from bench.gallery import main as gallery

        sys.argv.remove("--all")
        gallery()
        return
    torch.set_num_threads(1)
    found = table()
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for kind, certificate in found.items():
        failed = [claim for claim in certificate["claims"] if claim["verdict"] == "fails"]
        print(f"{kind:14} {'sound' if certificate['sound'] else 'FAILS'}  {certificate['about']}")
        for claim in failed:
            print(f"{'':14} {claim['claim']}: {claim['evidence']}")


if __name__ == "__main__":
    main()
