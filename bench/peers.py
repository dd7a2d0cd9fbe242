"""The contenders: one full training step each, on the same batches, with the same optimizer.

Every contender, ours included, steps with `torch.optim.AdamW(fused=True)`, with the same learning rate and weight decay
on every parameter. That is the fairest choice: it is the fastest optimizer PyTorch ships on CPU and GPU, anyone can
pass it, and on small models the default one (a Python loop over tensors on CPU) would hide the models' own speed behind
its overhead. `fused=None` gives everyone PyTorch's default instead.

Peers run in their fastest sensible eager form: SDPA attention (`attn_implementation="sdpa"`, `attn_flash=True`), no
dropout, no cache, the loss computed on all positions. Third-party packages are imported when asked for, not before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.plain_gpt2 import PlainGPT2, Sizes

#: A model reduced to what a benchmark needs: (tokens [B, N], targets [B, N]) -> mean cross entropy.
Loss = Callable[[Tensor, Tensor], Tensor]


def batches(sizes: Sizes, device: str, count: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Random tokens and, as targets, the same shifted by one: the same for every contender."""
    source = torch.Generator().manual_seed(7)
    shape = (count, sizes.batch, sizes.context + 1)
    drawn = torch.randint(sizes.vocabulary, shape, generator=source).to(device)
    return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in drawn]


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of logits [B, N, V] against targets [B, N]."""
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def plain(sizes: Sizes) -> tuple[nn.Module, Loss]:
    """The model of `plain_gpt2.py`."""
    model = PlainGPT2(sizes)
    return model, model


def transformers_gpt2(sizes: Sizes) -> tuple[nn.Module, Loss]:
    """`transformers`' GPT-2 with the exact GELU everyone else has: on a CPU its tanh form takes three times as long."""
    from transformers import GPT2Config, GPT2LMHeadModel

    kernels: dict[str, Any] = {"attn_implementation": "sdpa"}  # taken by the base class, not in the signature
    config = GPT2Config(
        vocab_size=sizes.vocabulary,
        n_positions=sizes.context,
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        **kernels,
    )
    model = GPT2LMHeadModel(config)
    # The cache is switched off in the call, not in the config: on a GPU that was 441,000 against 332,000 tokens/s.
    return model, lambda tokens, targets: mean_loss(model(input_ids=tokens, use_cache=False).logits, targets)


def x_transformers(sizes: Sizes) -> tuple[nn.Module, Loss]:
    """x-transformers' Decoder with its defaults, heads as wide as everyone's, and its flash attention."""
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=sizes.vocabulary,
        max_seq_len=sizes.context,
        attn_layers=Decoder(
            dim=sizes.width,
            depth=sizes.layers,
            heads=sizes.heads,
            attn_dim_head=sizes.width // sizes.heads,
            attn_flash=True,
        ),
    )
    return model, lambda tokens, targets: mean_loss(model(tokens), targets)


PEERS: dict[str, Callable[[Sizes], tuple[nn.Module, Loss]]] = {
    "plain GPT-2": plain,
    "transformers GPT-2": transformers_gpt2,
    "x-transformers Decoder": x_transformers,
}


@dataclass(frozen=True)
class How:
    """How every contender of one benchmark is run."""

    device: str = "cpu"
    bf16: bool = False
    compiled: bool = False
    fused: bool | None = True


def training_step(build: Callable[[Sizes], tuple[nn.Module, Loss]], sizes: Sizes, how: How) -> Callable[[], Tensor]:
    """A function that takes one training step: gradients cleared, forward, loss, backward, optimizer.

    Compiled contenders are compiled as one graph: a graph break is an error, not a slowdown nobody notices.
    """
    torch.manual_seed(1)
    model, loss = build(sizes)
    model.to(how.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=how.fused)
    if how.compiled:
        loss = torch.compile(loss, fullgraph=True)
    data = cycle(batches(sizes, how.device))

    def step() -> Tensor:
        tokens, targets = next(data)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(how.device, torch.bfloat16) if how.bf16 else contextlib.nullcontext():
            value = loss(tokens, targets)
        value.backward()
        optimizer.step()
        return value

    return step
