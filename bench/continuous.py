"""Continuous batching beside static batches on a CPU: `python -m bench.continuous`.

64 prompts of 8 to 128 tokens, texts of 1 to 256 tokens (most are short: a stop string of probability 1/64), 16 rows,
a GPT of 3M parameters in float32. Static batches are 16 prompts at a time, each batch until its last text is finished;
rows leave when half of them have finished. `transformers` gets a GPT-2 of the same sizes, the same prompts and lengths
of texts, and static batches. Tokens are those of the texts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.interleave import LATEST, Contender, add_rounds, compare, interleave, save, show

PROMPTS, ROWS, LONGEST, VOCABULARY, CONTEXT = 64, 16, 256, 64, 512
LAYERS, HEADS, WIDTH = 4, 4, 256


def prompts() -> list[list[int]]:
    """Random tokens without the one that ends a text."""
    draws = torch.Generator().manual_seed(2)
    lengths = torch.randint(8, 129, (PROMPTS,), generator=draws).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=draws).tolist() for length in lengths]


def ours(static: bool) -> tuple[Callable[[], object], list[int]]:
    """A pass over all prompts, and the lengths of the texts."""
    from regard.data.tokenizers import Characters
    from regard.generate import Prompt, Sampling, TextGenerator
    from regard.models import GPTConfig
    from regard.nn.fused import install

    torch.manual_seed(1)
    config = GPTConfig(vocabulary=VOCABULARY, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH)
    model = config.build().eval()
    install(model)
    characters = Characters("".join(map(chr, range(48, 48 + VOCABULARY))))
    generator = TextGenerator(model, characters, Sampling(1.0), LONGEST, stops=(characters.decode([0]),), batch=ROWS)
    waiting = [Prompt(tuple(tokens), sample) for sample, tokens in enumerate(prompts())]
    size = ROWS if static else PROMPTS

    def generate() -> list[int]:
        batches = (waiting[first : first + size] for first in range(0, PROMPTS, size))
        return [text.tokens for batch in batches for text in generator.texts(batch)]

    return generate, generate()


def peer() -> Any:
    """`transformers`' GPT-2 of the same sizes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": CONTEXT}
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **ends)).eval()


def static_peer(lengths: Sequence[int]) -> Callable[[], object]:
    """`generate`, 16 prompts at a time, with padding on the left, until each text has its length."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Limits(StoppingCriteria):
        def __init__(self, ends: torch.Tensor):
            self.ends = ends

        def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> Any:
            return input_ids.shape[1] >= self.ends

    model, texts = peer(), prompts()

    def generate() -> None:
        for first in range(0, PROMPTS, ROWS):
            batch, limits = texts[first : first + ROWS], torch.tensor(lengths[first : first + ROWS])
            longest = max(map(len, batch))
            padded = torch.tensor([[0] * (longest - len(text)) + text for text in batch])
            mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in batch])
            ends = StoppingCriteriaList([Limits(longest + limits)])
            options = {"max_new_tokens": int(limits.max()), "do_sample": True, "top_k": 0, "stopping_criteria": ends}
            out = model.generate(padded, attention_mask=mask, **options)
            assert out.shape[1] == longest + limits.max()

    return generate


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_rounds(parser, 6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=LATEST)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    continuous, lengths = ours(static=False)
    static, same = ours(static=True)
    assert lengths == same
    work = sum(lengths)
    print(f"{work:,} tokens in {PROMPTS} texts of {min(lengths)} to {max(lengths)}", file=sys.stderr)
    field = [
        Contender("continuous", continuous, work),
        Contender("static batches", static, work),
        Contender("transformers generate", static_peer(lengths), work),
    ]
    rates = interleave(field, chosen.rounds, 1.0, warmup=1, progress=lambda line: print(line, file=sys.stderr))
    setting = f"{PROMPTS} prompts, {ROWS} rows, GPT of 3M, float32"
    entries = compare("continuous batching on cpu", setting, rates, "continuous", [one.name for one in field[1:]])
    show(entries)
    save(entries, chosen.out)


if __name__ == "__main__":
    main()
