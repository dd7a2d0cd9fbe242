"""Layers. A config that selects a kind of layer is a frozen dataclass next to the class it builds."""

from regard.nn.attention import (
    AttentionContext,
    ProjectionConfig,
    SelfAttention,
    SeparateConfig,
    SharedConfig,
    SharedSelfAttention,
)
from regard.nn.auxiliary_loss import AuxiliaryLoss, AuxiliaryLossLayer
from regard.nn.blocks.block import Block, BlockConfig, PostNorm, PostNormConfig, PreNorm, PreNormConfig
from regard.nn.blocks.no_residual import NoResidual, NoResidualConfig
from regard.nn.blocks.parallel import Parallel, ParallelConfig
from regard.nn.blocks.reversible import Reversible, ReversibleConfig, ReversibleStack
from regard.nn.blocks.sandwich import Sandwich, SandwichConfig
from regard.nn.blocks.stack import Stack
from regard.nn.convolution import CausalConvolution
from regard.nn.embedding import NGrams
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts, MoEConfig
from regard.nn.feedforward import (
    BilinearConfig,
    FeedForward,
    FeedForwardConfig,
    FeedForwardLayer,
    GatedFeedForward,
    GEGLUConfig,
    GELUConfig,
    GLUConfig,
    ReGLUConfig,
    ReLUConfig,
    ReLUSquared,
    ReLUSquaredConfig,
    SiLUConfig,
    SwiGLUConfig,
)
from regard.nn.latent import LatentAttention, LatentConfig
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm, LayerNormConfig, NoNormConfig, NormConfig, RMSNorm, RMSNormConfig
from regard.nn.plain import DecoderLayer, EncoderLayer, MultiHeadAttention
from regard.nn.positions.grid import (
    GridLearnedConfig,
    GridPositionConfig,
    GridRelativeConfig,
    GridRotaryConfig,
    GridSinusoidalConfig,
    NoGridConfig,
    patches,
)
from regard.nn.positions.position import (
    Learned,
    LearnedPositionConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    Rotary,
    RotaryConfig,
    Sinusoidal,
    SinusoidalConfig,
    sinusoids,
)
from regard.nn.positions.relative import AlibiConfig, RelativeConfig, T5Config
from regard.nn.positions.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)
from regard.nn.recurrent import Recurrent, RecurrentState

__all__ = [
    "AlibiConfig",
    "AttentionContext",
    "AuxiliaryLoss",
    "AuxiliaryLossLayer",
    "BilinearConfig",
    "Block",
    "BlockConfig",
    "CapacityExperts",
    "CausalConvolution",
    "DecoderLayer",
    "DynamicScalingConfig",
    "EncoderLayer",
    "FeedForward",
    "FeedForwardConfig",
    "FeedForwardLayer",
    "GEGLUConfig",
    "GELUConfig",
    "GLUConfig",
    "GatedFeedForward",
    "GridLearnedConfig",
    "GridPositionConfig",
    "GridRelativeConfig",
    "GridRotaryConfig",
    "GridSinusoidalConfig",
    "LatentAttention",
    "LatentConfig",
    "LayerNorm",
    "LayerNormConfig",
    "Learned",
    "LearnedPositionConfig",
    "Linear",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "MixtureOfExperts",
    "MoEConfig",
    "MultiHeadAttention",
    "NGrams",
    "NTKScalingConfig",
    "NoGridConfig",
    "NoNormConfig",
    "NoPositionConfig",
    "NoResidual",
    "NoResidualConfig",
    "NoScalingConfig",
    "NormConfig",
    "Parallel",
    "ParallelConfig",
    "Position",
    "PositionConfig",
    "PostNorm",
    "PostNormConfig",
    "PreNorm",
    "PreNormConfig",
    "ProjectionConfig",
    "RMSNorm",
    "RMSNormConfig",
    "ReGLUConfig",
    "ReLUConfig",
    "ReLUSquared",
    "ReLUSquaredConfig",
    "Recurrent",
    "RecurrentState",
    "RelativeConfig",
    "Reversible",
    "ReversibleConfig",
    "ReversibleStack",
    "Rotary",
    "RotaryConfig",
    "Sandwich",
    "SandwichConfig",
    "ScalingConfig",
    "SelfAttention",
    "SeparateConfig",
    "SharedConfig",
    "SharedSelfAttention",
    "SiLUConfig",
    "Sinusoidal",
    "SinusoidalConfig",
    "Stack",
    "SwiGLUConfig",
    "T5Config",
    "YarnScalingConfig",
    "patches",
    "sinusoids",
]
