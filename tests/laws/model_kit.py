"""Small configs of every registered model, batches for them, and one training step: shared by the model laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from outside_model import AverageConfig
from torch import Tensor
from torch.nn import functional as F

from regard.attention import (
    GATConfig,
    LinearConfig,
    LinformerConfig,
    LSHConfig,
    PerformerConfig,
    SegmentsConfig,
    TalkingConfig,
    TopKConfig,
    WindowConfig,
)
from regard.models import (
    ArrayEncoder,
    BahdanauConfig,
    CaptionerConfig,
    ConvolutionConfig,
    DetectorConfig,
    DLinearConfig,
    EfficientNetConfig,
    Encoder,
    EncoderConfig,
    FixedConfig,
    GPTConfig,
    GraphConfig,
    HybridViTConfig,
    ImageCNNConfig,
    ImageLSTMConfig,
    LanguageModel,
    LuongConfig,
    Model,
    ModelConfig,
    OneStreamConfig,
    PatchTSTConfig,
    PerceiverConfig,
    RecurrentConfig,
    Seq2SeqConfig,
    Seq2SeqModel,
    SignalConfig,
    TextToImageConfig,
    TransformerConfig,
    TwoTowersConfig,
    VideoConfig,
    ViTConfig,
)
from regard.models.forecast import ForecastHeadConfig
from regard.nn.attention import SharedConfig, SharedQKConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.heads import (
    BertTokensHeadConfig,
    ClassesHeadConfig,
    LinksHeadConfig,
    NoHeadConfig,
    TokenClassesHeadConfig,
    ValuesHeadConfig,
)
from regard.nn.latent import LatentConfig
from regard.nn.mixers import MambaConfig, MinGRUConfig, MinLSTMConfig, S4DConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.grid import GridRasterConfig, GridRelativeConfig, GridRotaryConfig, GridSinusoidalConfig
from regard.nn.positions.position import LearnedPositionConfig, RelativeConfig, RotaryConfig
from regard.nn.signals import PatchesConfig
from regard.nn.sound import LogMelConfig, WaveformConfig

SIZES: dict[str, Any] = {"vocabulary": 29, "context": 32, "width": 16, "layers": 2}
VIT: Any = ViTConfig(image=12, channels=2, patch=3, width=16, layers=2, heads=4)
GRAPH: Any = GraphConfig(
    context=12, kinds=5, edge_kinds=3, numbers=4, width=16, layers=2, heads=4, zero_init=False,
    head=TokenClassesHeadConfig(5),
)  # fmt: skip
PARTS = 64  # different ones of arrays
MEAN = ClassesHeadConfig(5, pool="mean")
GPT: Any = GPTConfig(**SIZES, heads=4, kv_heads=2, ngrams=2, buckets=64, zero_init=False)
MODELS: dict[str, ModelConfig] = {
    "gpt": GPT,
    "gpt window": replace(GPT, attention=WindowConfig(size=6, sinks=2)),
    "gpt relative": replace(GPT, position=RelativeConfig()),
    "gpt linear": replace(GPT, attention=LinearConfig()),
    "gpt performer": replace(GPT, attention=PerformerConfig()),
    "gpt lsh": replace(GPT, attention=LSHConfig()),
    "gpt segments": replace(GPT, attention=SegmentsConfig()),
    "gpt talking": replace(GPT, kv_heads=None, attention=TalkingConfig()),
    "gpt topk": replace(GPT, attention=TopKConfig()),
    "gpt experts": replace(GPT, feedforward=MoEConfig(experts=4, active=2)),
    "gpt reversible": replace(GPT, block=ReversibleConfig()),
    "gpt latent": replace(GPT, kv_heads=None, projection=LatentConfig()),
    "gpt reformer": replace(GPT, kv_heads=None, projection=SharedQKConfig(), attention=LSHConfig(avoid_self=True)),
    "gpt shared": replace(GPT, kv_heads=None, projection=SharedConfig()),
    "gpt s4d": replace(GPT, attention=S4DConfig(state=6)),
    "gpt mamba": replace(GPT, attention=MambaConfig(state=3)),
    "gpt mingru": replace(GPT, attention=MinGRUConfig(kernel=3)),
    "gpt minlstm": replace(GPT, attention=MinLSTMConfig(gate=False)),
    "gpt hybrid": replace(GPT, attention=S4DConfig(state=6, spectrum="inv", kernel=2), global_every=2),
    "rnn": RecurrentConfig(**SIZES, cell="rnn"),
    "lstm": RecurrentConfig(**SIZES, cell="lstm"),
    "gru": RecurrentConfig(**SIZES, cell="gru"),
    "convolution": ConvolutionConfig(**SIZES),
    "transformer": TransformerConfig(**SIZES, heads=4, dropout=0.0),
    "transformer parts": TransformerConfig(
        **SIZES, heads=4, kv_heads=2, dropout=0.0, attention=WindowConfig(size=4), position=RotaryConfig()
    ),
    "transformer linear": TransformerConfig(**SIZES, heads=4, dropout=0.0, attention=LinearConfig()),
    "transformer latent": TransformerConfig(**SIZES, heads=4, dropout=0.0, projection=LatentConfig()),
    "encoder": EncoderConfig(**SIZES, heads=4, kv_heads=2, zero_init=False),
    "encoder linformer": EncoderConfig(**SIZES, heads=4, zero_init=False, attention=LinformerConfig(k=8)),
    "encoder reversible": EncoderConfig(**SIZES, heads=4, zero_init=False, block=ReversibleConfig()),
    "encoder bert": EncoderConfig(
        **SIZES,
        heads=4,
        mask_token=3,
        token_types=2,
        embedding_norm=True,
        bias=True,
        qk_norm=False,
        zero_init=False,
        norm=LayerNormConfig(),
        position=LearnedPositionConfig(offset=2),
        block=PostNormConfig(),
        head=BertTokensHeadConfig(),
    ),
    "vit": VIT,
    "vit mean": replace(VIT, class_token=False, head=MEAN, position=GridSinusoidalConfig()),
    "vit raster": replace(VIT, position=GridRasterConfig()),
    "vit rotary": replace(VIT, position=GridRotaryConfig()),
    "vit relative": replace(VIT, position=GridRelativeConfig()),
    "hybrid vit": HybridViTConfig(image=12, channels=2, patch=4, width=16, layers=2, heads=4),
    "two towers": TwoTowersConfig(
        width=12,
        image=replace(VIT, class_token=False, head=NoHeadConfig()),
        text=EncoderConfig(**SIZES, heads=4, zero_init=False, head=NoHeadConfig()),
    ),
    "two towers cls": TwoTowersConfig(
        width=12, image=replace(VIT, head=NoHeadConfig()), text=EncoderConfig(**SIZES, heads=4, head=NoHeadConfig())
    ),
    "efficientnet": EfficientNetConfig(image=64, channels=2, multiplier=0.25),
    "image cnn": ImageCNNConfig(image=12, channels=2, width=16, layers=3),
    "image lstm": ImageLSTMConfig(image=12, channels=2, width=16, layers=2),
    "signal": SignalConfig(points=24, channels=2, width=16, layers=2, heads=4, embed=PatchesConfig(size=2), head=MEAN),
    "signal statistics": SignalConfig(points=24, width=16, layers=2, heads=4, statistics=True, head=MEAN),
    "signal token": SignalConfig(
        points=12, width=16, layers=2, heads=4, class_token=True, position=RotaryConfig(), head=ClassesHeadConfig(5)
    ),
    "signal log-mel": SignalConfig(
        points=640, width=16, layers=2, heads=4, embed=LogMelConfig(rate=2000, bands=8, window=(25.0, 60.0)), head=MEAN
    ),
    "signal waveform": SignalConfig(points=160, width=16, layers=2, heads=4, embed=WaveformConfig((5, 2)), head=MEAN),
    "patchtst": PatchTSTConfig(
        points=24,
        layers=2,
        dropout=0.0,
        embed=PatchesConfig(size=4, stride=2, repeat=True),
        head=ForecastHeadConfig(5, (0.1, 0.5, 0.9)),
    ),
    "dlinear": DLinearConfig(points=12, kernel=5, head=ForecastHeadConfig(5)),
    "graph": GRAPH,
    "graph gat": replace(GRAPH, attention=GATConfig(), head=ValuesHeadConfig(2)),
    "graph gat dynamic": replace(GRAPH, attention=GATConfig(dynamic=True), head=MEAN),
    "graph all": replace(GRAPH, local=False, distances=3, numbers=0),
    "graph links": replace(GRAPH, head=LinksHeadConfig(3)),
    "video": VideoConfig(image=6, channels=2, patch=3, frames=6, tubelet=2, width=16, layers=2, heads=4),
    "detector": DetectorConfig(image=12, channels=2, patch=3, width=16, layers=2, heads=4, queries=5),
    "text to image": TextToImageConfig(
        vocabulary=29,
        context=32,
        width=16,
        layers=2,
        heads=4,
        zero_init=False,
        image=8,
        region=1,
        codes=9,
        colors=3,
        coder_width=16,
    ),
    "seq2seq fixed": Seq2SeqConfig(**SIZES, dropout=0.0, attention=FixedConfig()),
    "seq2seq bahdanau": Seq2SeqConfig(**SIZES, dropout=0.0, attention=BahdanauConfig()),
    "seq2seq luong": Seq2SeqConfig(**SIZES, dropout=0.0, attention=LuongConfig(), cell="lstm"),
    "one stream": OneStreamConfig(vocabulary=29, tokens=7, image=12, channels=2, patch=3, width=16, layers=2, heads=4),
    "perceiver": PerceiverConfig(
        encoder=replace(VIT, layers=0, class_token=False), width=16, layers=3, heads=4, latents=5, head=MEAN
    ),
    "perceiver signal": PerceiverConfig(
        encoder=SignalConfig(points=24, channels=2, width=16, layers=1, heads=4, embed=PatchesConfig(size=2)),
        width=16,
        layers=2,
        heads=4,
        latents=5,
        head=MEAN,
    ),
    "captioner": CaptionerConfig(**SIZES, heads=4, encoder=replace(VIT, layers=1)),
    "captioner resampler": CaptionerConfig(
        **SIZES,
        heads=4,
        kv_heads=2,
        zero_init=False,
        encoder=PerceiverConfig(encoder=replace(VIT, class_token=False), width=16, layers=2, heads=4, latents=3),
    ),
    "outside": AverageConfig(**SIZES),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """The model of that name, always with the same weights, none of them zero."""
    return randomized(MODELS[name], dtype)


def randomized(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Any:
    """The model of a config, always with the same weights, none of them zero."""
    torch.manual_seed(1)
    model: Any = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 8)
    return model.to(dtype)


class Inputs(NamedTuple):
    """One batch: what the model is called with, and the targets."""

    arguments: tuple[Tensor, ...]
    targets: Tensor  # [B, N]


def inputs(model: Model, rows: int = 4, length: int = 12, seed: int = 2) -> Inputs:
    """Random tokens; for a sequence-to-sequence model also sources of several lengths. Or arrays, and any outputs."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, ArrayEncoder):
        parts = torch.randint(PARTS, (rows, model.config.context - model.before), generator=generator)
        arguments = model.inputs_of(parts)
        targets = torch.randn(model(*arguments).shape, generator=generator, dtype=torch.float64)
        return Inputs(arguments, targets.to(arguments[0].dtype))
    vocabulary = model.config.vocabulary
    tokens = torch.randint(vocabulary, (rows, length + 1), generator=generator)
    arguments = (tokens[:, :-1],)
    if isinstance(model, Seq2SeqModel):
        lengths = torch.randint(2, 8, (rows,), generator=generator)
        lengths[0] = 7
        source = torch.randint(model.source_vocabulary or PARTS, (rows, 7), generator=generator)
        tokens[:, 0] = vocabulary - 2  # a captioner's mark of an image; others are drawn
        arguments = (tokens[:, :-1], model.source_of(source), lengths)
    return Inputs(arguments, tokens[:, 1:])


def loss(model: Model, batch: Inputs) -> Tensor:
    """The summed cross entropy, through ``features`` and ``head`` as a task calls them; of arrays, squared errors."""
    if isinstance(model, ArrayEncoder):
        return F.mse_loss(model(*batch.arguments), batch.targets, reduction="sum")
    features = model.features(*batch.arguments)  # type: ignore[operator]
    logits = model.head(features)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")


def gradients(model: Model, batch: Inputs) -> dict[str, Tensor]:
    """The gradients of one training step; parameters that got none are absent."""
    torch.manual_seed(5)
    model.train()
    loss(model, batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def kinds_of(base: type) -> list[str]:
    """The names of the models of one class of the contract."""
    return [name for name in MODELS if isinstance(build(name), base)]


DECODABLE = [name for name in kinds_of(LanguageModel) + kinds_of(Seq2SeqModel) if build(name).decodable]
ENCODERS = kinds_of(Encoder)
ARRAYS = kinds_of(ArrayEncoder)
