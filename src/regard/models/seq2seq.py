"""Recurrent sequence-to-sequence models: an encoder, a bridge, a decoder (Cho et al. 2014; Sutskever et al. 2014).

The bridge is how the decoder reads the source: one vector, or attention (models/bridges.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from regard.config import option
from regard.errors import UserError
from regard.models.base import Seq2SeqModel, Seq2SeqState
from regard.models.bridges import Annotated, BahdanauConfig, BridgeConfig, BridgeSpec, DecoderState, FixedConfig
from regard.models.config import REDUCED, ModelConfig
from regard.models.state import check_capacity
from regard.nn.init import initialize
from regard.nn.linear import Linear
from regard.nn.recurrent import Recurrent


@dataclass(frozen=True)
class Seq2SeqConfig(ModelConfig, kind="seq2seq"):
    """Sizes and parts of a recurrent encoder-decoder. The defaults are Bahdanau's model, small."""

    vocabulary: int = option(65, "size of the target vocabulary", least=1)
    source_vocabulary: int | None = option(
        None, "size of the source vocabulary (default: one vocabulary for both)", least=1
    )
    context: int = option(64, "longest sentence, in tokens", least=1)
    cell: Literal["rnn", "lstm", "gru"] = option("gru", "the recurrent cell")
    width: int = option(256, "width of the states; a bidirectional encoder has half of it in each direction", least=1)
    embedding: int | None = option(None, "width of an embedded token (default: the width)", least=1)
    layers: int = option(1, "recurrent layers of the encoder, and of the decoder", least=1)
    dropout: float = option(0.1, "dropout on embeddings, between layers and before the output layer", least=0, below=1)
    tied: bool = option(True, "share the embedding with the output layer")
    bidirectional: bool = option(True, "run the encoder in both directions")
    attention: BridgeConfig = field(default_factory=BahdanauConfig)

    def check(self) -> None:
        super().check()
        if self.bidirectional and self.width % 2:
            raise ValueError(
                f"a width of {self.width} does not halve into two directions; width = {self.width + 1} would do"
            )
        plain = isinstance(self.attention, FixedConfig) and not self.attention.every_step
        if self.tied and plain and self.embedding not in (None, self.width):
            raise ValueError(
                f"the output layer has states of width {self.width} as inputs, so an embedding of width "
                f"{self.embedding} cannot serve as both; set tied = false"
            )

    def reduced(self) -> Self:
        width = min(self.width, REDUCED.width)
        embedding = self.embedding and (width if self.embedding == self.width else width // 2)
        return replace(super().reduced(), embedding=embedding)

    def make(self) -> Seq2Seq:
        return Seq2Seq(self)


class Seq2Seq(Seq2SeqModel):
    """Source [B, S] and target inputs [B, T] to logits [B, T, V]."""

    compilable = False  # the decoder's steps are a Python loop
    graphable = False  # the kernels of whole recurrent layers allocate their results

    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config)
        c, embedding = config, config.embedding or config.width
        self.source_vocabulary = c.source_vocabulary or c.vocabulary
        self.source_embed = nn.Embedding(self.source_vocabulary, embedding)
        self.embed = nn.Embedding(c.vocabulary, embedding)
        self.drop = nn.Dropout(c.dropout)
        each = c.width // 2 if c.bidirectional else c.width  # the width of one direction
        self.encoder = Recurrent(c.cell, embedding, each, c.layers, bidirectional=c.bidirectional, dropout=c.dropout)
        self.decoder = c.attention.build(BridgeSpec(c.cell, embedding, c.width, c.layers, c.dropout))
        self.unembed = Linear(self.decoder.out, c.vocabulary)
        if c.tied:
            self.unembed.weight = self.embed.weight
            if c.source_vocabulary is None:
                self.source_embed.weight = self.embed.weight
        self.reset()

    def reset(self) -> None:
        """Matrices that keep the variance of their inputs (Glorot & Bengio 2010), cells as ``Recurrent`` has them."""
        initialize(self, nn.init.xavier_uniform_, lambda table: nn.init.normal_(table, std=0.1))
        for _, mechanism in self.mechanisms():
            for parameter in mechanism.parameters():
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, Recurrent):
                module.reset_biases()
                module.reset_matrices()

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Everything but the head: [B, T, C]. Each step takes the true previous token (teacher forcing)."""
        shared, own = self._encode(source, source_lengths)
        return self._decode(inputs, shared, own)[0]

    @property
    def blocks(self) -> list[nn.Module]:  # type: ignore[override]
        """The encoder and the decoder."""
        return [self.encoder, self.decoder]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self.decoder, "remember"), (self.decoder, "begin")]

    @torch.no_grad()
    def start(
        self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1
    ) -> Seq2SeqState:
        """Encode ``batch`` sources once; return an empty state for ``beams`` rows each."""
        if source.shape[0] != batch:
            raise UserError(f"{source.shape[0]} sources were given for a batch of {batch}")
        shared, own = self._encode(source, source_lengths)
        rows = torch.arange(batch, device=source.device).repeat_interleave(beams)
        fed = None if own.fed is None else own.fed[rows]
        return Seq2SeqState(shared, DecoderState(own.hidden.map(lambda part: part[rows]), fed), capacity)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Consume tokens [B*beams, T] after those in ``state``; return logits [B*beams, T, V] and the new state."""
        check_capacity(state, tokens.shape[1])
        features, own = self._decode(tokens, state.shared, state.own)
        return self.head(features), state._replace(own=own, used=state.used + tokens.shape[1])

    def _encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor | Annotated, DecoderState]:
        annotations, last = self.run_block(self.encoder, self.drop(self.source_embed(source)), lengths)
        shape = (source.shape[0], self.config.layers, self.config.width)  # directions side by side
        last = last.map(lambda part: part.reshape(shape))
        return self.decoder.remember(annotations, lengths, last), self.decoder.begin(last)

    def _decode(self, tokens: Tensor, shared: Tensor | Annotated, own: DecoderState) -> tuple[Tensor, DecoderState]:
        features, own = self.run_block(self.decoder, self.drop(self.embed(tokens)), shared, own)
        return self.drop(features), own
