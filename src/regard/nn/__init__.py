"""Layers: one idea a file. A config that names a kind is a frozen dataclass beside the class it builds."""

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
from regard.nn.blocks.reversible import Reversible, ReversibleConfig
from regard.nn.blocks.sandwich import Sandwich, SandwichConfig
from regard.nn.convolution import CausalConvolution
from regard.nn.embedding import NGrams
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts, MoEConfig
from regard.nn.feedforward import (
    BilinearConfig,
    FeedForward,
    FeedForwardConfig,
    GatedFeedForward,
    GEGLUConfig,
    GELUConfig,
    GLUConfig,
    ReGLUConfig,
    ReLUConfig,
    ReLUSquaredConfig,
    SwiGLUConfig,
)
from regard.nn.latent import LatentAttention, LatentConfig
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm, LayerNormConfig, NoNormConfig, NormConfig, RMSNorm, RMSNormConfig
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
from regard.nn.recurrent import Hidden, Recurrent
from regard.nn.silu import SiLUConfig

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
    "DynamicScalingConfig",
    "FeedForward",
    "FeedForwardConfig",
    "GEGLUConfig",
    "GELUConfig",
    "GLUConfig",
    "GatedFeedForward",
    "GridLearnedConfig",
    "GridPositionConfig",
    "GridRelativeConfig",
    "GridRotaryConfig",
    "GridSinusoidalConfig",
    "Hidden",
    "LatentAttention",
    "LatentConfig",
    "LayerNorm",
    "LayerNormConfig",
    "Learned",
    "LearnedConfig",
    "Linear",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "MixtureOfExperts",
    "MoEConfig",
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
    "ReLUSquaredConfig",
    "Recurrent",
    "RelativeConfig",
    "Reversible",
    "ReversibleConfig",
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
    "SwiGLUConfig",
    "T5Config",
    "YarnScalingConfig",
    "patches",
    "sinusoids",
]
