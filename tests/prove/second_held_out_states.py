"""Second held-out list: faults of decoding, packing, checkpoints and export."""

import math
from dataclasses import dataclass

import torch
from second_held_out_contract import Pair, PairConfig, Windowed, WindowedConfig
from second_held_out_kit import Attention, Block, Decoder, Effects, drawn, seeded
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Packed
from regard.models import GPTConfig
from regard.nn import Position, PositionConfig
from regard.prove import ModelUnderTest

FAULTS, EFFECTS = Entries(), Effects()


class Forgetful(Windowed, part="short-pieces"):
    def kept(self, before: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat((torch.full_like(before, -1), tokens), 1)


@FAULTS("step")
def window_state():
    """The state after a piece is made from this piece alone, wrong if it is shorter than the window."""
    return ModelUnderTest(seeded(WindowedConfig(part="short-pieces").build))


def decoded(model, tokens: Tensor, pieces: list[int]) -> Tensor:
    state, out = model.start(len(tokens), tokens.shape[1]), []
    for piece in tokens.split(pieces, 1):
        logits, state = model.step(piece, state)
        out.append(logits)
    return torch.cat(out, 1)


@EFFECTS(window_state)
@torch.no_grad()
def _():
    model, tokens = seeded(WindowedConfig(part="short-pieces").build), drawn(2, 24, 41)
    assert (decoded(model, tokens, [8, 8, 8]) - model(tokens)).abs().max() < 1e-5
    return float((decoded(model, tokens, [8, 1, 1, 14]) - model(tokens)).abs().max())


class Tiled(Pair, part="tiled"):
    def rows(self, batch: int, beams: int, device) -> Tensor:
        return torch.arange(batch, device=device).repeat(beams)


@FAULTS("step")
def beam_rows():
    """The first decoder state is tiled (0 1 0 1) over beams that are laid out as 0 0 1 1."""
    return ModelUnderTest(seeded(PairConfig(part="tiled").build))


@EFFECTS(beam_rows)
@torch.no_grad()
def _():
    model, tokens, source = seeded(PairConfig(part="tiled").build), drawn(2, 6, 37), drawn(2, 7, 37, 3)
    lengths = torch.tensor([7, 5])
    state = model.start(2, 6, source=source, source_lengths=lengths, beams=2)
    twice = tokens.repeat_interleave(2, 0)
    want = model(twice, source.repeat_interleave(2, 0), lengths.repeat_interleave(2))
    return float((model.step(twice, state)[0] - want).abs().max())


class Smear(Position):
    def __init__(self, width: int):
        super().__init__()
        self.gate = nn.Parameter(torch.full((width,), 0.5))

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        return x + self.gate.to(x.dtype) * F.pad(x[:, :-1], (0, 0, 1, 0))


@dataclass(frozen=True)
class SmearConfig(PositionConfig, kind="second-held-out-smear"):
    """Each embedding plus a part of the one before it."""

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Smear(width)


def smeared():
    return GPTConfig(
        vocabulary=31, context=48, layers=2, heads=2, width=32, zero_init=False, position=SmearConfig()
    ).build()


@FAULTS("packing step")
def smeared_embedding():
    """A position part adds the embedding of the previous token of the row, also across documents, and in decoding none
    at all."""
    return ModelUnderTest(seeded(smeared))


@EFFECTS(smeared_embedding)
@torch.no_grad()
def _():

    model, tokens = seeded(smeared), drawn(1, 12, 31)
    got = model(tokens, Packed.of([[5, 7]]))[:, 5:]
    return float((got - model(tokens[:, 5:])).abs().max())


class Fourier(Windowed, part="fourier"):
    waves: Tensor

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("waves", torch.randn(config.width, config.width), persistent=False)

    def between(self, x: Tensor) -> Tensor:
        return torch.cos(x @ self.waves)


@FAULTS("checkpoint")
def random_features():
    """Random Fourier features are drawn at construction and kept in a non-persistent buffer."""
    return ModelUnderTest(seeded(WindowedConfig(part="fourier").build))


@EFFECTS(random_features)
@torch.no_grad()
def _():
    model, tokens = seeded(WindowedConfig(part="fourier").build), drawn(2, 10, 41)
    again = model.config.build().eval()
    again.load_state_dict(model.state_dict())
    return float((again(tokens) - model(tokens)).abs().max())


class Untied(Windowed, part="untied"):
    def __init__(self, config):
        super().__init__(config)
        self.unembed.weight = self.embed.weight  # tied ...
        self.reset()

    def reset(self) -> None:
        for module in (self.embed, self.unembed):
            module.weight = nn.Parameter(torch.randn_like(module.weight) * 0.1)  # ... and untied again

    def state_dict(self, *arguments, **named):
        saved = super().state_dict(*arguments, **named)
        saved.pop(named.get("prefix", "") + "unembed.weight", None)  # the embedding has it
        return saved

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False):
        found = super().load_state_dict(state_dict, strict=False, assign=assign)
        self.unembed.weight = self.embed.weight
        return found


@FAULTS("checkpoint")
def head_left_out():
    """The head is left out of checkpoints as tied to the embedding, but the initialization has untied it."""
    return ModelUnderTest(seeded(WindowedConfig(part="untied").build))


@EFFECTS(head_left_out)
@torch.no_grad()
def _():
    model, tokens = seeded(WindowedConfig(part="untied").build), drawn(2, 10, 41)
    again = model.config.build().eval()
    again.load_state_dict(model.state_dict())
    return float((again(tokens) - model(tokens)).abs().max())


class Compiled(Attention):
    def __init__(self, width: int, heads: int):
        super().__init__(width, heads)
        self.width = width

    def mix(self, q, k, v, mask: Tensor, bias):
        if torch.compiler.is_compiling():  # the kernel traces better
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        s = (q @ k.transpose(-1, -2)) / math.sqrt(self.width)  # of the model, not of a head
        return s.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def compiled():
    return Decoder(29, block=lambda w, h: Block(w, h, Compiled(w, h)))


@FAULTS("export")
def traced_scale():
    """The path taken while compiling or exporting scales scores by the head width, the eager one by the model width."""
    return ModelUnderTest(seeded(compiled), vocabulary=29, length=16)


@EFFECTS(traced_scale)
@torch.no_grad()
def _():
    model, tokens = seeded(compiled), drawn(2, 16, 29)
    dynamic = {"tokens": {1: torch.export.Dim("n", min=2, max=64)}}
    program = torch.export.export(model, (tokens,), dynamic_shapes=dynamic).module()
    return float((program(tokens) - model(tokens)).abs().max())
