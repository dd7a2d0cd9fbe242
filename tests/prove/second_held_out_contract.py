"""Two small sound models of the library's contract: over the last tokens, and an encoder-decoder."""

import math
from dataclasses import dataclass

import torch
from second_held_out_kit import waves
from torch import Tensor, nn

from regard import UserError
from regard.attention import AnySlots, Packed
from regard.config import option
from regard.models import LanguageModel, ModelConfig, Seq2SeqModel, Seq2SeqState, State


@dataclass(frozen=True)
class WindowedConfig(ModelConfig, kind="second-held-out-windowed"):
    vocabulary: int = option(41, "size of the vocabulary")
    context: int = option(48, "length of the training sequences")
    layers: int = option(1, "hidden layers")
    width: int = option(24, "width")
    window: int = option(5, "tokens a prediction is made from")
    part: str = option("plain", "which class to build")

    def make(self) -> LanguageModel:
        return WINDOWED[self.part](self)


WINDOWED: dict[str, type] = {}


class Windowed(LanguageModel):
    """A network over the last few tokens, with its state the last tokens (-1: none)."""

    def __init_subclass__(cls, part: str = "", **named):
        super().__init_subclass__(**named)
        WINDOWED[part] = cls

    def __init__(self, config: WindowedConfig):
        super().__init__(config)
        c, self.window = config, config.window
        self.embed = nn.Embedding(c.vocabulary, c.width)
        sizes = [c.window * c.width] + [c.width] * (c.layers - 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(n, c.width), nn.Tanh()) for n in sizes)
        self.unembed = nn.Linear(c.width, c.vocabulary)

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Packed):
            raise UserError("this model does not support packed rows: it reads across documents")
        return self.over(torch.cat((tokens.new_full((len(tokens), self.window - 1), -1), tokens), 1))

    def over(self, tokens: Tensor) -> Tensor:
        seen = tokens.unfold(1, self.window, 1)
        x = self.embed(seen.clamp(min=0)) * (seen >= 0)[..., None]
        return self.between(nn.Sequential(*self.blocks)(x.flatten(2)))

    def between(self, x: Tensor) -> Tensor:
        return x

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        recent = torch.full((batch, self.window - 1), -1, dtype=torch.long, device=self.embed.weight.device)
        return State(recent.new_zeros(batch), (recent,), fixed=fixed)

    def kept(self, before: Tensor, tokens: Tensor) -> Tensor:
        """The row whose last `window - 1` real tokens become the state."""
        return torch.cat((before, tokens), 1)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False):
        count = torch.full_like(state.position, tokens.shape[1]) if lengths is None else lengths
        x = self.over(torch.cat((state.layers[0], tokens), 1))
        kept = self.kept(state.layers[0], tokens)
        state.layers[0].copy_(kept.gather(1, count[:, None] + torch.arange(self.window - 1, device=count.device)))
        x = x[torch.arange(len(x)), (count - 1).clamp(min=0)][:, None] if last else x
        return self.head(x), state._replace(position=state.position.add_(count), used=state.used + tokens.shape[1])


WINDOWED["plain"] = Windowed


@dataclass(frozen=True)
class PairConfig(ModelConfig, kind="second-held-out-pair"):
    vocabulary: int = option(37, "size of the vocabulary")
    context: int = option(32, "longest sentence")
    layers: int = option(1, "layers")
    width: int = option(24, "width")
    part: str = option("plain", "which class to build")

    def make(self) -> Seq2SeqModel:
        return PAIRS[self.part](self)


PAIRS: dict[str, type] = {}


class Pair(Seq2SeqModel):
    """The source is a bag of embeddings; a recurrent decoder starts from their mean and attends to them."""

    compilable = False
    graphable = False

    def __init_subclass__(cls, part: str = "", **named):
        super().__init_subclass__(**named)
        PAIRS[part] = cls

    def __init__(self, config: PairConfig):
        super().__init__(config)
        c = config
        self.source_vocabulary = c.vocabulary
        self.embed_source, self.embed = nn.Embedding(c.vocabulary, c.width), nn.Embedding(c.vocabulary, c.width)
        self.first = nn.Linear(c.width, c.width)
        self.cell = nn.GRU(c.width, c.width, batch_first=True)
        self.across = nn.Linear(2 * c.width, c.width)
        self.unembed = nn.Linear(c.width, c.vocabulary)

    @property
    def blocks(self):
        return [self.cell]

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed_source(source)
        x = x + waves(x.shape[1], x.shape[2], x)
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        mean = (x * real[..., None]).sum(1) / lengths[:, None].to(x.dtype)
        return x, real, torch.tanh(self.first(mean))

    def decode(self, tokens: Tensor, memory: Tensor, real: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """memory [B, S, C], tokens [B * beams, T], hidden [B * beams, C]."""
        beams = len(tokens) // len(memory)
        memory, real = memory.repeat_interleave(beams, 0), real.repeat_interleave(beams, 0)
        x, hidden = self.cell(self.embed(tokens), hidden[None].contiguous())
        s = (x @ memory.transpose(1, 2) / math.sqrt(x.shape[2])).masked_fill(~real[:, None], float("-inf"))
        return torch.tanh(self.across(torch.cat((x, s.softmax(-1) @ memory), -1))), hidden[0]

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        return self.decode(inputs, *self.encode(source, source_lengths))[0]

    def rows(self, batch: int, beams: int, device) -> Tensor:
        return torch.arange(batch, device=device).repeat_interleave(beams)

    @torch.no_grad()
    def start(self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1):
        memory, real, hidden = self.encode(source, source_lengths)
        return Seq2SeqState((memory, real), hidden[self.rows(batch, beams, source.device)], capacity)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Seq2SeqState):
        memory, real = state.shared
        x, own = self.decode(tokens, memory, real, state.own)
        return self.head(x), state._replace(own=own, used=state.used + tokens.shape[1])


PAIRS["plain"] = Pair
