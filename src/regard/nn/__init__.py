"""Layers. A config that selects a kind of layer is a frozen dataclass next to the class it builds.

The names imported here are those that parts from outside the package extend; importing it registers every kind.
"""

from regard.nn.attention import AttentionContext, ProjectionConfig
from regard.nn.blocks.block import Block, BlockConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import FeedForwardConfig
from regard.nn.latent import LatentConfig
from regard.nn.mixers import MixerConfig
from regard.nn.norm import NormConfig
from regard.nn.plain import DecoderLayer, EncoderLayer, MultiHeadAttention
from regard.nn.positions.position import Position, PositionConfig
from regard.nn.quantized import QuantizationConfig
from regard.nn.signals import SignalEmbedding, SignalEmbeddingConfig
from regard.nn.sound import LogMelConfig, WaveformConfig
