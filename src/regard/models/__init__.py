"""Models: assemblies only. A model file reads like the paper's figure."""

from regard.models.base import ModelConfig
from regard.models.bridges import BahdanauConfig, BridgeConfig, FixedConfig, LuongConfig
from regard.models.convolution import Convolution, ConvolutionConfig, ConvolutionState
from regard.models.gpt import GPT, GPTConfig, State
from regard.models.presets import PRESETS, describe
from regard.models.recurrent import RecurrentConfig, RecurrentModel, RecurrentState
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig, TransformerState

__all__ = [
    "GPT",
    "PRESETS",
    "BahdanauConfig",
    "BridgeConfig",
    "Convolution",
    "ConvolutionConfig",
    "ConvolutionState",
    "FixedConfig",
    "GPTConfig",
    "LuongConfig",
    "ModelConfig",
    "RecurrentConfig",
    "RecurrentModel",
    "RecurrentState",
    "Seq2Seq",
    "Seq2SeqConfig",
    "State",
    "Transformer",
    "TransformerConfig",
    "TransformerState",
    "describe",
]
