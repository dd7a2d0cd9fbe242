"""Layers. A config that selects a kind of layer is a frozen dataclass next to the class it builds."""

from regard.nn.attention import (
    AttentionContext,
    ProjectionConfig,
    SelfAttention,
    SeparateConfig,
    SharedConfig,
)
from regard.nn.blocks.block import Block, BlockConfig, PostNorm, PostNormConfig, PreNorm, PreNormConfig
from regard.nn.blocks.no_residual import NoResidualConfig
from regard.nn.blocks.parallel import ParallelConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.blocks.sandwich import SandwichConfig
from regard.nn.blocks.stack import Stack
from regard.nn.convolution import CausalConvolution
from regard.nn.embedding import NGrams
from regard.nn.experts.moe import MoEConfig
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
    ReLUSquared,
    ReLUSquaredConfig,
    SiLUConfig,
    SwiGLUConfig,
)
from regard.nn.latent import LatentConfig
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm, LayerNormConfig, NoNormConfig, NormConfig, RMSNorm, RMSNormConfig
from regard.nn.plain import DecoderLayer, EncoderLayer, MultiHeadAttention
from regard.nn.positions.position import (
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
    LinearScalingConfig,
    Llama3ScalingConfig,
    YarnScalingConfig,
)
from regard.nn.recurrent import Recurrent, RecurrentState
