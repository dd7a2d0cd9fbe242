"""A model: a feed-forward network over the last few tokens (Bengio et al. 2003, eq. 1).

regard train --with model.py --model bengio --model.window 8
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import UserError
from regard.attention import AnySlots, Packed
from regard.config import option
from regard.models import LanguageModel, ModelConfig, State


@dataclass(frozen=True)
class BengioConfig(ModelConfig, kind="bengio"):
    vocabulary: int = option(256, "size of the vocabulary; set by the data")
    context: int = option(64, "length of the training sequences")
    layers: int = option(1, "number of hidden layers")
    width: int = option(64, "width of the layers")
    window: int = option(8, "number of tokens that a prediction is made from")

    def make(self) -> LanguageModel:
        return Bengio(self)


class Bengio(LanguageModel):
    def __init__(self, config: BengioConfig):
        super().__init__(config)
        self.before, self.window = config.vocabulary, config.window  # `before`: the token before the first
        self.embed = nn.Embedding(config.vocabulary + 1, config.width)
        inputs = [config.window * config.width] + [config.width] * (config.layers - 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(n, config.width), nn.Tanh()) for n in inputs)
        self.unembed = nn.Linear(config.width, config.vocabulary)

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Packed):
            raise UserError("bengio does not support packed rows: it reads across documents")
        return self._over(torch.cat((tokens.new_full((len(tokens), self.window - 1), self.before), tokens), 1))

    def _over(self, tokens: Tensor) -> Tensor:
        return nn.Sequential(*self.blocks)(self.embed(tokens.unfold(1, self.window, 1)).flatten(2))

    def head(self, x: Tensor) -> Tensor:
        return self.unembed(x)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        recent = self.embed.weight.new_full((batch, self.window - 1), self.before, dtype=torch.long)
        return State(recent.new_zeros(batch), (recent,), fixed=fixed)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False):
        count = torch.full_like(state.position, tokens.shape[1]) if lengths is None else lengths
        x = self._over(joined := torch.cat((state.layers[0], tokens), 1))
        state.layers[0].copy_(joined.gather(1, count[:, None] + torch.arange(self.window - 1, device=count.device)))
        x = x[torch.arange(len(x)), (count - 1).clamp(min=0)][:, None] if last else x
        return self.head(x), state._replace(position=state.position.add_(count), used=state.used + tokens.shape[1])
