"""Models: each file assembles parts of ``regard.nn`` as the figure of the paper does."""

from regard.models.base import (
    ArrayEncoder,
    Encoder,
    LanguageModel,
    Model,
    ModelConfig,
    PairEncoder,
    Seq2SeqModel,
    Seq2SeqState,
    State,
)
from regard.models.bridges import BahdanauConfig, BridgeConfig, FixedConfig, LuongConfig
from regard.models.captioner import Captioner, CaptionerConfig
from regard.models.convolution import Convolution, ConvolutionConfig
from regard.models.detector import Detector, DetectorConfig
from regard.models.efficientnet import EfficientNet, EfficientNetConfig
from regard.models.encoder import EncoderConfig, TransformerEncoder
from regard.models.forecast import DLinear, DLinearConfig, Forecaster, ForecasterConfig, PatchTST, PatchTSTConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.graph import GraphConfig, GraphTransformer
from regard.models.hybrid import HybridViTConfig
from regard.models.image_cnn import ImageCNN, ImageCNNConfig
from regard.models.image_lstm import ImageLSTM, ImageLSTMConfig
from regard.models.images import ImageConfig, ImageEncoder
from regard.models.one_stream import OneStream, OneStreamConfig
from regard.models.perceiver import Perceiver, PerceiverConfig
from regard.models.presets import PRESETS
from regard.models.recurrent import RecurrentConfig, RecurrentModel
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.signal import SignalConfig, SignalEncoder
from regard.models.size import describe, flops_per_token
from regard.models.text_to_image import TextToImage, TextToImageConfig
from regard.models.towers import TwoTowers, TwoTowersConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.video import Video, VideoConfig
from regard.models.vit import ViT, ViTConfig
