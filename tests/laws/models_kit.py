"""The models of test_models.py: one small config of every registered kind, and one model defined outside the package.

``python models_kit.py RANK SIZE FOLDER`` is one of two processes that each train on half of the rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from regard.attention import AnySlots, Packed, Slots
from regard.config import knob
from regard.models import (
    ConvolutionConfig,
    GPTConfig,
    LanguageModel,
    ModelConfig,
    RecurrentConfig,
    Seq2SeqConfig,
    State,
    TransformerConfig,
)
from regard.models.base import Encoder, Model, Seq2SeqModel
from regard.nn.packing import documents, latest
from regard.train.shard import World, shard, whole

VOCABULARY, ROWS, LENGTH = 13, 4, 7


@dataclass(frozen=True)
class MovingAverageConfig(ModelConfig, kind="moving-average"):
    """A model outside the package: each block adds an exponential moving average of its inputs."""

    vocabulary: int = knob(65, "size of the vocabulary")
    context: int = knob(64, "longest sequence in training")
    layers: int = knob(2, "number of blocks")
    width: int = knob(16, "model width")

    def make(self) -> MovingAverage:
        return MovingAverage(self)


class MovingAverageBlock(nn.Module):
    """x + W m, with m_t = 0.9 m_{t-1} + x_t."""

    def __init__(self, width: int):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        averages, average = [], start
        for t in range(x.shape[1]):
            average = 0.9 * average + x[:, t]
            averages.append(average)
        stacked = torch.stack(averages, dim=1)
        return x + self.mix(stacked), stacked


class MovingAverage(LanguageModel):
    """The smallest model that fulfills the contract."""

    graphable = False

    def __init__(self, config: MovingAverageConfig):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(MovingAverageBlock(config.width) for _ in range(config.layers))
        self.unembed = nn.Linear(config.width, config.vocabulary)

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Slots):
            raise ValueError("give Range, Padded or Packed slots")
        if isinstance(slots, Packed):
            document, place = documents(slots)
            apart = tokens.new_zeros(int(document.max()) + 1, int(place.max()) + 1)
            apart[document, place] = tokens
            return self.features(apart)[document, place]
        x = self.embed(tokens)
        for block in self.blocks:
            run = torch.utils.checkpoint.checkpoint if self.checkpointing and self.training else _call
            settings = {"use_reentrant": False} if run is not _call else {}
            x, _ = run(block, x, x.new_zeros(x.shape[0], x.shape[2]), **settings)
        return x

    def head(self, x: Tensor) -> Tensor:
        return self.unembed(x)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        zeros = self.embed.weight.new_zeros(batch, self.config.width)
        layers = tuple(zeros.clone() for _ in self.blocks)
        return State(torch.zeros(batch, dtype=torch.long, device=zeros.device), layers, fixed=fixed)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        x, count = self.embed(tokens), tokens.shape[1]
        real = torch.full_like(state.position, count) if lengths is None else lengths
        for block, before in zip(self.blocks, state.layers, strict=True):
            x, averages = block(x, before.clone())
            reached = averages[torch.arange(len(real)), (real - 1).clamp(min=0)]
            before.copy_(torch.where(real[:, None] > 0, reached, before))
        state.position.add_(real)
        return self.head(latest(x, lengths) if last else x), state._replace(used=state.used + count)


def _call(block: nn.Module, *inputs: Any) -> Any:
    return block(*inputs)


CONFIGS: dict[str, ModelConfig] = {
    "gpt": GPTConfig(VOCABULARY, 16, 2, 2, width=16, zero_init=False),
    "recurrent": RecurrentConfig(vocabulary=VOCABULARY, context=16, width=16),
    "convolution": ConvolutionConfig(VOCABULARY, 16, 3, 16, zero_init=False),
    "transformer": TransformerConfig(VOCABULARY, None, 16, 2, heads=2, width=16, dropout=0.0),
    "seq2seq": Seq2SeqConfig(VOCABULARY, context=16, width=16, dropout=0.0),
    "moving-average": MovingAverageConfig(VOCABULARY, 16, 2, 16),
}


def build(kind: str) -> Model:
    """The model with random weights everywhere, the same in every process, in float64."""
    generator = torch.Generator().manual_seed(1)
    model = CONFIGS[kind].build().double()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def batch(model: Model, rows: slice = slice(None)) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs of ``forward`` and the targets."""
    generator = torch.Generator().manual_seed(2)
    tokens, source, targets = (
        torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)[rows] for _ in range(3)
    )
    lengths = torch.tensor([7, 3, 5, 1])[rows]
    return ((tokens, source, lengths) if isinstance(model, Seq2SeqModel) else (tokens,)), targets


def loss(model: Model, rows: slice = slice(None), call: Callable[..., Tensor] | None = None) -> Tensor:
    """The summed cross-entropy, through ``features`` and ``head`` as a task calls them."""
    inputs, targets = batch(model, rows)
    if call is not None:
        logits = call(*inputs)
    else:
        assert isinstance(model, LanguageModel | Encoder | Seq2SeqModel)
        logits = model.head(model.features(*inputs))
    targets = targets[:, : logits.shape[1]] if logits.ndim == 3 else targets[:, 0]
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def gradients(model: Model) -> dict[str, Tensor]:
    """The gradient of every parameter, gathered where it is sharded."""
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    for kind in CONFIGS:
        for checkpointing in (False, True):
            model = build(kind)
            model.checkpointing = checkpointing
            shard(model, World(rank, size, rank))
            loss(model, slice(rank, None, size)).backward()
            found = {name: gradient.contiguous() for name, gradient in gradients(model).items()}
            if rank == 0:
                save_file(found, folder / f"{kind}-{checkpointing}")
    distributed.destroy_process_group()


def run_ranks(folder: Path) -> None:
    """Two processes."""
    commands = [[sys.executable, __file__, str(rank), "2", str(folder)] for rank in range(2)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(errors)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    os._exit(0)  # DTensor's caches keep gloo's threads alive (pytorch/pytorch#190489)
