"""Beam search, `python -m bench.translation`: ours and `transformers`' MarianMT, with the same weights.

64 sentences of 20 tokens, beam 5, every translation 40 tokens long, float32 on a CPU. Hypotheses are compared first:
both must find the same texts. Sizes are those of the `translate-transformer` recipe (3 + 3 layers, width 256, 8,000
tokens), and Marian's own (6 + 6 layers, width 512) with `--settings small,marian`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.interleave import LATEST, Contender, add_rounds, compare, interleave, save, show

SENTENCES, SOURCE, BEAMS, LENGTH = 64, 20, 5, 40
SETTINGS = {
    "small": {"layers": 3, "width": 256, "heads": 4, "inner": 1024, "vocabulary": 8000},
    "marian": {"layers": 6, "width": 512, "heads": 8, "inner": 2048, "vocabulary": 8000},
}


def marian(sizes: dict[str, int]) -> Any:
    """A MarianMT model with random weights that are large enough for its choices to be clear."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(1)
    last = sizes["vocabulary"] - 1
    config = MarianConfig(
        vocab_size=sizes["vocabulary"],
        d_model=sizes["width"],
        encoder_layers=sizes["layers"],
        decoder_layers=sizes["layers"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["inner"],
        decoder_ffn_dim=sizes["inner"],
        max_position_embeddings=128,
        pad_token_id=last,
        decoder_start_token_id=last,
        eos_token_id=0,
        forced_eos_token_id=None,
        scale_embedding=True,
        init_std=0.06,
    )
    return MarianMTModel(config).eval()


def theirs(model: Any, source: torch.Tensor) -> Callable[[], list[list[int]]]:
    """`generate` with beams."""
    settings: dict[str, Any] = {
        "num_beams": BEAMS,
        "do_sample": False,
        "min_new_tokens": LENGTH,
        "max_new_tokens": LENGTH,
        "early_stopping": False,
        "length_penalty": 1.0,
        "attention_mask": torch.ones_like(source),
    }
    return lambda: [row[1 : 1 + LENGTH] for row in model.generate(source, **settings).tolist()]


def ours(model: Any, source: torch.Tensor) -> Callable[[], list[list[int]]]:
    """Our beam search over the same weights."""
    from regard.convert.hub import read_hub
    from regard.data.translation.pairs import Specials
    from regard.generate import BeamSearch, OutputConstraints, decode_seq2seq

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config, weights, *_ = read_hub(Path(folder))
    converted: Any = config.build().eval()
    converted.load_state_dict(weights)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    constraints = OutputConstraints.of(Specials(pad=pad, begin=pad, end=end), LENGTH, LENGTH)
    lengths = torch.full((len(source),), source.shape[1])

    def translate() -> list[list[int]]:
        return [found[0].tokens for found in decode_seq2seq(converted, source, lengths, constraints, BeamSearch(BEAMS))]

    return translate


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="small,marian")
    add_rounds(parser, 7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=LATEST)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    entries = []
    for name in chosen.settings.split(","):
        sizes = SETTINGS[name]
        model = marian(sizes)
        source = torch.randint(1, sizes["vocabulary"] - 1, (SENTENCES, SOURCE), generator=torch.manual_seed(2))
        contenders = {"ours": ours(model, source), "transformers generate": theirs(model, source)}
        mine, other = (run() for run in contenders.values())
        same = sum(a == b for a, b in zip(mine, other, strict=True))
        print(f"{name}: {same} of {SENTENCES} hypotheses are the same")
        if same < SENTENCES:
            raise SystemExit("the two do not search alike; nothing to compare")
        work = SENTENCES * LENGTH
        field = [Contender(label, run, work) for label, run in contenders.items()]
        rates = interleave(field, chosen.rounds, 1.0, warmup=1, progress=lambda line: print(line, file=sys.stderr))
        setting = (
            f"{name}: {sizes['layers']}+{sizes['layers']} x {sizes['width']}, {SENTENCES} x beam {BEAMS} x {LENGTH}"
        )
        entries += compare("beam search on cpu", setting, rates, "ours", ["transformers generate"])
    show(entries)
    save(entries, chosen.out)


if __name__ == "__main__":
    main()
