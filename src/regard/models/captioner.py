"""A language model that sees images: gated cross-attention to their tokens (Alayrac et al. 2022, Flamingo, fig. 3).

A text has a mark where each image begins, and its tokens attend to the latest image before them. So a text may show
several images with captions, as examples, before the one that is to be described.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from regard.attention import AttentionConfig, Full, KVCache, Slots, SoftmaxConfig
from regard.config import option
from regard.models.base import ModelConfig, Seq2SeqModel, Seq2SeqState, State
from regard.models.gpt import GPT, GPTConfig
from regard.models.perceiver import build_encoder, headless
from regard.models.state import check_capacity
from regard.models.vit import ViTConfig
from regard.nn.attention import CrossAttention, CrossAttentionContext
from regard.nn.blocks.block import Block, BlockConfig, GatedCrossConfig
from regard.nn.heads import NoHeadConfig
from regard.nn.positions.position import Position

MARKS = 2  # token ids after those of the data: where an image begins, and the end of its caption


@dataclass(frozen=True)
class CaptionerConfig(GPTConfig, kind="captioner"):
    """Sizes and parts of the language model, whose blocks are gated, and the encoder of images.

    With `--model.encoder perceiver` the images have few tokens (Flamingo's resampler).
    """

    vocabulary: int = option(67, "token ids of captions, and two marks after them")
    context: int = option(64, "longest text: the captions of all images, with two marks each")
    text: bool = option(True, "captions are texts of a tokenizer, and not words of scenes; set by the run")
    autoregressive: bool = option(True, "a word depends on those before it too, not only on the image and its place")
    encoder: ModelConfig = field(
        default_factory=lambda: ViTConfig(class_token=False, head=NoHeadConfig()),
        metadata={"help": "the encoder of images, such as vit, hybrid-vit or perceiver"},
    )
    across: AttentionConfig = field(default_factory=SoftmaxConfig, metadata={"help": "attention to the image"})
    block: BlockConfig = field(default_factory=GatedCrossConfig)

    def check(self) -> None:
        super().check()
        for part in (headless(self.encoder), self.across):
            part.check()
        if self.encoder.width != self.width:
            raise ValueError(f"the text has width {self.width}; set encoder.width to it, not {self.encoder.width}")
        if not all(isinstance(one.pattern(), Full) for one in (*self.attentions(), self.across)):
            raise ValueError("a captioner reads all of its text and of the image; leave the masks of attention out")

    @property
    def reads(self) -> str:  # type: ignore[override]
        """What the encoder reads."""
        return self.encoder.reads

    @property
    def tokenized(self) -> bool:
        return self.text

    @property
    def image_mark(self) -> int:
        """The token where an image begins."""
        return self.vocabulary - MARKS

    @property
    def end_mark(self) -> int:
        """The token that ends a caption."""
        return self.vocabulary - 1

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        size = self.vocabulary if vocabulary is None else vocabulary + MARKS
        return replace(self, vocabulary=size, encoder=self.encoder.reading(None, shape))

    def reduced(self) -> Self:
        return replace(super().reduced(), encoder=self.encoder.reduced())

    def build_block(
        self, attention: AttentionConfig, position: Position, across: AttentionConfig | None = None
    ) -> Block:
        """A block with cross-attention to the image."""
        return super().build_block(attention, position, across or self.across)

    def make(self) -> Captioner:  # type: ignore[override]
        return Captioner(self)


class EncodedImages(NamedTuple):
    """What all texts about the same images share: the keys and values of each layer."""

    most: int  # K
    counts: Tensor  # [B], how many of them are real
    layers: tuple[KVCache, ...]  # [B, G, K·N, D] each


class CaptionState(NamedTuple):
    """The decoding state of each text."""

    text: State
    seen: Tensor  # [B * beams], marks of images that the text has had


class Captioner(Seq2SeqModel):
    """Texts [B, T] about images [B, K, ...] to logits [B, T, V]; ``source_lengths`` [B]: how many images each has."""

    config: CaptionerConfig
    source_vocabulary = 0

    def __init__(self, config: CaptionerConfig):
        super().__init__(config)
        self.encoder, self.decoder = build_encoder(config.encoder), GPT(config)
        self.compilable = self.encoder.compilable and self.decoder.compilable
        self.limit, self.positional = self.decoder.limit, self.decoder.positional
        self.masks = list(dict.fromkeys((*self.encoder.masks, *self.decoder.masks, Full())))

    @property
    def blocks(self) -> list[nn.Module]:  # type: ignore[override]
        """Every block, the encoder's first."""
        return [*self.encoder.blocks, *self.decoder.blocks]

    @property
    def norm(self) -> nn.Module:  # type: ignore[override]
        return self.decoder.norm

    @property
    def unembed(self) -> nn.Module:  # type: ignore[override]
        return self.decoder.unembed

    @property
    def text_reader(self) -> GPT:
        """The language model, which reads texts without images too."""
        return self.decoder

    @property
    def cache_per_token(self) -> int:
        return self.decoder.cache_per_token

    def residual_blocks(self) -> list[nn.Module]:
        return self.decoder.residual_blocks()

    def features(self, inputs: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        return self.read(inputs, self.encode(source), source.shape[1], source_lengths)

    def read(self, inputs: Tensor, memory: Tensor, most: int, counts: Tensor) -> Tensor:
        """Features [B, T, C] of texts about the tokens [B, K·N, C] of ``most`` images, of which ``counts`` are real."""
        plan = self._plan(self.image_of(inputs), counts, most, memory)
        self.decoder.checkpointing = self.checkpointing
        return self.decoder.features(self._read(inputs), cross=CrossAttentionContext(plan, memory))

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self, "encode"), (self, "read"), (self, "head")]

    def encode(self, source: Tensor) -> Tensor:
        """The tokens of images [B, K, ...], [B, K·N, C]."""
        self.encoder.checkpointing = self.checkpointing
        return self.encoder.features(source.flatten(0, 1)).unflatten(0, source.shape[:2]).flatten(1, 2)

    def image_of(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        """The number of the image that each token [B, T] attends to: that of the latest mark; 0 before the first.

        ``seen`` [B]: marks before these tokens.
        """
        return (self._marks(tokens, seen) - 1).clamp(min=0)

    def _read(self, tokens: Tensor) -> Tensor:
        """What the decoder reads: without the words if they are predicted independently (Gu et al. 2018, sec. 3)."""
        words = tokens < self.config.image_mark
        return tokens if self.config.autoregressive else tokens.masked_fill(words, self.config.end_mark)

    def _marks(self, tokens: Tensor, seen: Tensor | None) -> Tensor:
        """How many marks there are up to each token."""
        count = (tokens == self.config.image_mark).cumsum(1)
        return count if seen is None else count + seen[:, None]

    def _plan(self, images: Tensor, counts: Tensor, most: int, memory: Tensor) -> Any:
        """One plan for every cross-attention: a token and the tokens of its image are in one segment.

        ``memory``: the tokens of ``most`` images, [..., K·N, C or D], of which ``counts`` [B] are real.
        """
        number = torch.arange(most, device=images.device)
        segment = torch.where(number < counts[:, None], number, -1)
        keys = _slots(segment.repeat_interleave(memory.shape[-2] // most, dim=1))
        return self._across(0).mechanism.plan(Full(), _slots(images), keys, like=memory)

    def _across(self, layer: int) -> CrossAttention:
        across = self.decoder.blocks.layers[layer].cross
        assert across is not None
        return across

    def head(self, x: Tensor) -> Tensor:
        return self.decoder.head(x)

    @torch.no_grad()
    def start(
        self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1
    ) -> Seq2SeqState:
        """Encode the images of ``batch`` texts once; return an empty state for ``beams`` rows each."""
        if source.shape[0] != batch:
            raise ValueError(f"images of {source.shape[0]} texts were given for a batch of {batch}")
        memory, layers = self.encode(source), range(len(self.decoder.blocks.layers))
        shared = EncodedImages(
            source.shape[1], source_lengths, tuple(self._across(layer).project(memory) for layer in layers)
        )
        text = self.decoder.start(batch * beams, capacity)
        return Seq2SeqState(shared, CaptionState(text, torch.zeros_like(text.position)), capacity)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        check_capacity(state, tokens.shape[1])
        shared, own, images = state.shared, state.own, self.image_of(tokens, state.own.seen)
        own.seen.copy_(self._marks(tokens, own.seen)[:, -1])
        rows = images.reshape(len(shared.counts), -1)  # the beams of a text attend to its images as one longer row
        plan = self._plan(rows, shared.counts, shared.most, shared.layers[0].k)
        cross = [CrossAttentionContext(plan, projected) for projected in shared.layers]
        x, text = self.decoder.consume(self._read(tokens), own.text, None, cross)
        return self.head(x), state._replace(own=own._replace(text=text), used=state.used + tokens.shape[1])

    def source_of(self, tokens: Tensor) -> Tensor:
        """An image for each token."""
        count = self.config.encoder.context - self.encoder.before
        parts = tokens.flatten()[:, None] + torch.arange(count, device=tokens.device)
        return self.encoder.inputs_of(parts)[0].unflatten(0, tokens.shape)


def _slots(segment: Tensor) -> Slots:
    """Slots [B, N] that nothing but their segment tells apart."""
    order = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    return Slots(order, segment, order)
