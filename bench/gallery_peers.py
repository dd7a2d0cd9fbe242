"""Models of x-transformers and litgpt, tested with `regard prove`; a library that is not installed is left out.

    python -m bench.gallery_peers [--only LIBRARY,NAME] [--json FILE] [--markdown FILE]

Each is built small, with random weights, by its library's own classes.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gallery import Row, add_verdicts, first_line, table
from regard.prove import ModelUnderTest, certify
from regard.prove.reduced import randomize_weights

VOCABULARY, CONTEXT, LENGTH = 96, 64, 24
CLAIMS = ("future", "padding", "batching", "step", "finite", "order")


class XTransformers:
    """A `TransformerWrapper` of x-transformers; its cache is the intermediates of earlier calls."""

    def __init__(self, wrapper: dict[str, Any], **options: Any):
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
        self.module = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=CONTEXT, attn_layers=layers, **wrapper)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.module(tokens)

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.module(tokens, mask=torch.arange(tokens.shape[1]) < lengths[:, None])

    def start(self, batch: int, capacity: int) -> None:
        """The first step makes the cache."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, object]:
        """After the first call it takes one token at a time."""
        logits = []
        for piece in (tokens,) if state is None else tokens.split(1, dim=1):
            out, state = self.module(piece, cache=state, return_intermediates=True, input_not_include_cache=True)
            logits.append(out)
        return torch.cat(logits, dim=1), state


class LitGPT:
    """A `GPT` of litgpt; its cache is inside of the model."""

    def __init__(self, name: str):
        from litgpt import GPT, Config

        given = Config.from_name(name)
        groups = 4 if given.n_query_groups == given.n_head else 1 if given.n_query_groups == 1 else 2
        sizes = {
            "n_layer": 2,
            "n_embd": 32,
            "n_head": 4,
            "head_size": 8,
            "n_query_groups": groups,
            "vocab_size": VOCABULARY,
        }
        sizes |= {
            "padded_vocab_size": VOCABULARY,
            "block_size": CONTEXT,
            "intermediate_size": 64,
            "rope_adjustments": None,
        }
        if given.n_expert:
            sizes |= {"n_expert": 4, "n_expert_per_token": 2, "moe_intermediate_size": 64}
        self.module = GPT(Config.from_name(name, **sizes))

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.module(tokens)

    def start(self, batch: int, capacity: int) -> int:
        self.module.clear_kv_cache()
        self.module.set_kv_cache(batch, dtype=next(self.module.parameters()).dtype)
        return 0

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, object]:
        end = state + tokens.shape[1]
        return self.module(tokens, input_pos=torch.arange(state, end)), end


Peer = XTransformers | LitGPT
LITGPT = ("pythia-70m", "falcon-7b", "Llama-2-7b-hf", "Llama-3.1-8B", "OLMo-2-1124-7B", "Gemma-2b", "Gemma-2-2b")
LITGPT += (
    "Gemma-3-1b-it",
    "phi-2",
    "Phi-3-mini-4k-instruct",
    "Mistral-7B-v0.1",
    "Mixtral-8x7B-v0.1",
    "Qwen2.5-0.5B",
    "Qwen3-0.6B",
)
#: By library and name: what builds the model.
PEERS: dict[str, dict[str, Callable[[], Peer]]] = {
    "x_transformers": {
        "Decoder": lambda: XTransformers({}),
        "Decoder, rotary": lambda: XTransformers({}, rotary_pos_emb=True),
        "Decoder, rotary with xPos": lambda: XTransformers({}, rotary_xpos=True),
        "Decoder, ALiBi": lambda: XTransformers({"use_abs_pos_emb": False}, alibi_pos_bias=True, alibi_num_heads=2),
        "Decoder, T5 relative positions": lambda: XTransformers({}, rel_pos_bias=True),
        "Decoder, grouped queries": lambda: XTransformers({}, attn_kv_heads=2),
        "Decoder, flash attention": lambda: XTransformers({}, attn_flash=True),
        "Decoder, memory key-values": lambda: XTransformers({}, attn_num_mem_kv=4),
        "Decoder, memory tokens": lambda: XTransformers({"num_memory_tokens": 4}),
        "Decoder, talking heads": lambda: XTransformers({}, attn_pre_talking_heads=True),
        "Decoder, sandwich norm and GLU": lambda: XTransformers({}, sandwich_norm=True, ff_glu=True),
        "Decoder, shifted tokens": lambda: XTransformers({}, shift_tokens=1),
        "Decoder, RMSNorm and normalized queries": lambda: XTransformers({}, use_rmsnorm=True, attn_qk_norm=True),
    },
    "litgpt": {name: lambda name=name: LitGPT(name) for name in LITGPT},
}


def judge(library: str, name: str) -> Row:
    """The verdicts on one model; if it cannot be built, why."""
    row: Row = {"group": library, "class": name, "claims": {}, "failures": []}
    try:
        torch.manual_seed(0)
        peer = PEERS[library][name]()
        randomize_weights(peer.module.float().eval())
        with torch.no_grad():
            peer(torch.zeros(1, LENGTH, dtype=torch.long))
    except Exception as error:
        return {"group": library, "class": name, "reason": first_line(error)}
    caches = isinstance(peer, LitGPT) or (isinstance(peer, XTransformers) and peer.module.can_cache_kv)
    ways = {"stepper": peer if caches else None, "padded": peer.padded if isinstance(peer, XTransformers) else None}
    subject = ModelUnderTest(peer, vocabulary=VOCABULARY, length=LENGTH, **ways)
    return add_verdicts(row, "", certify(subject, claims=CLAIMS))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="libraries or names, separated by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    only = {name for name in chosen.only.split(",") if name}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    titles: dict[str, str] = {}
    for library in filter(find_spec, PEERS):
        titles[library] = f"{library} {version(library)}"
        for name in PEERS[library]:
            if only and not only & {library, name}:
                continue
            rows.append(judge(library, name))
            what = rows[-1].get("reason") or "; ".join(rows[-1]["failures"]) or "sound"
            print(f"{library} {name}: {what}", file=sys.stderr)
            if chosen.json:
                chosen.json.write_text(json.dumps({"libraries": titles, "rows": rows}, indent=1))
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(table(rows, titles)) + "\n")


if __name__ == "__main__":
    main()
