"""Layers: one idea a file. A config that names a kind is a frozen dataclass beside the class it builds."""

from regard.layers.attention import Scene, SelfAttention
from regard.layers.bare import Bare, BareConfig
from regard.layers.block import Block, BlockConfig, PostNorm, PostNormConfig, PreNorm, PreNormConfig
from regard.layers.convolution import CausalConvolution
from regard.layers.embed import NGrams
from regard.layers.feedforward import (
    FeedForward,
    FeedForwardConfig,
    GatedFeedForward,
    GELUConfig,
    ReLUConfig,
    ReLUSquaredConfig,
    SwiGLUConfig,
)
from regard.layers.linear import Linear
from regard.layers.norm import LayerNorm, LayerNormConfig, NoNormConfig, NormConfig, RMSNorm, RMSNormConfig
from regard.layers.position import (
    Learned,
    LearnedConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    Rotary,
    RotaryConfig,
    Sinusoidal,
    SinusoidalConfig,
    sinusoids,
)
from regard.layers.recurrent import Hidden, Recurrent

__all__ = [
    "Bare",
    "BareConfig",
    "Block",
    "BlockConfig",
    "CausalConvolution",
    "FeedForward",
    "FeedForwardConfig",
    "GELUConfig",
    "GatedFeedForward",
    "Hidden",
    "LayerNorm",
    "LayerNormConfig",
    "Learned",
    "LearnedConfig",
    "Linear",
    "NGrams",
    "NoNormConfig",
    "NoPositionConfig",
    "NormConfig",
    "Position",
    "PositionConfig",
    "PostNorm",
    "PostNormConfig",
    "PreNorm",
    "PreNormConfig",
    "RMSNorm",
    "RMSNormConfig",
    "ReLUConfig",
    "ReLUSquaredConfig",
    "Recurrent",
    "Rotary",
    "RotaryConfig",
    "Scene",
    "SelfAttention",
    "Sinusoidal",
    "SinusoidalConfig",
    "SwiGLUConfig",
    "sinusoids",
]
