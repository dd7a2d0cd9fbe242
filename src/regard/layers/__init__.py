"""Layers: one idea a file. A config that names a kind is a frozen dataclass beside the class it builds."""

from regard.layers.aside import Aside, Said
from regard.layers.attention import (
    ProjectionConfig,
    Scene,
    SelfAttention,
    SeparateConfig,
    SharedConfig,
    SharedSelfAttention,
)
from regard.layers.bare import Bare, BareConfig
from regard.layers.block import Block, BlockConfig, PostNorm, PostNormConfig, PreNorm, PreNormConfig
from regard.layers.convolution import CausalConvolution
from regard.layers.embed import NGrams
from regard.layers.feedforward import (
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
from regard.layers.grid import (
    GridLearnedConfig,
    GridPositionConfig,
    GridRelativeConfig,
    GridRotaryConfig,
    GridSinusoidalConfig,
    NoGridConfig,
    patches,
)
from regard.layers.latent import LatentAttention, LatentConfig
from regard.layers.linear import Linear
from regard.layers.moe import CapacityExperts, MixtureOfExperts, MoEConfig
from regard.layers.norm import LayerNorm, LayerNormConfig, NoNormConfig, NormConfig, RMSNorm, RMSNormConfig
from regard.layers.parallel import Parallel, ParallelConfig
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
from regard.layers.relative import AlibiConfig, RelativeConfig, T5Config
from regard.layers.reversible import Reversible, ReversibleConfig
from regard.layers.sandwich import Sandwich, SandwichConfig
from regard.layers.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)
from regard.layers.silu import SiLUConfig

__all__ = [
    "AlibiConfig",
    "Aside",
    "Bare",
    "BareConfig",
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
    "Said",
    "Sandwich",
    "SandwichConfig",
    "ScalingConfig",
    "Scene",
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
