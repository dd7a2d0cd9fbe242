"""One attention operator. Masks, biases, scores, caches and backends are values passed to it."""

from regard.attention.attention_config import AttentionConfig, Sizes, SoftmaxConfig, WindowConfig
from regard.attention.backends.blocked import Blocked
from regard.attention.backends.choose import BACKENDS, Explanation, Refused, explain, run
from regard.attention.bias import Alibi, Bias, Buckets, Chain, GridRelative, Relative, SoftCap
from regard.attention.cache import CacheIndex, CacheWrite, DecodeInput, KVCache
from regard.attention.call import Backend, Call, Out, Plan
from regard.attention.masks.mask import (
    And,
    Causal,
    Dilated,
    Full,
    Global,
    Mask,
    Not,
    Or,
    Prefix,
    Reach,
    Strided,
    Tile,
    Verdict,
    Window,
)
from regard.attention.masks.patterns import Chunks, Columns, Scattered, Sinks
from regard.attention.masks.tables import Blocks, Edges, Same
from regard.attention.mechanism import Mechanism, Softmax, attend
from regard.attention.mechanisms.linear import LinearAttention, LinearConfig
from regard.attention.mechanisms.linformer import Linformer, LinformerConfig
from regard.attention.mechanisms.lsh import LSH, LSHConfig
from regard.attention.mechanisms.performer import Performer, PerformerConfig
from regard.attention.mechanisms.segments import Segment, Segmented, SegmentsConfig
from regard.attention.mechanisms.sparse import (
    BigBirdConfig,
    DilatedConfig,
    LongformerConfig,
    SparseConfig,
    StridedConfig,
)
from regard.attention.mechanisms.talking import Talking, TalkingConfig
from regard.attention.mechanisms.topk import TopKConfig
from regard.attention.normalizer import (
    Entmax,
    HardLookup,
    Normalizer,
    NormalizerConfig,
    Sigmoid,
    SoftmaxNormalizer,
    TopKSoftmax,
)
from regard.attention.properties import ModuleProperties
from regard.attention.score import Additive, Dot, General, Score
from regard.attention.slots import AnySlots, Packed, Padded, Pairs, Range, Slots, TokenPosition

__all__ = [
    "BACKENDS",
    "LSH",
    "Additive",
    "Alibi",
    "And",
    "AnySlots",
    "AttentionConfig",
    "Backend",
    "Bias",
    "BigBirdConfig",
    "Blocked",
    "Blocks",
    "Buckets",
    "CacheIndex",
    "CacheWrite",
    "Call",
    "Causal",
    "Chain",
    "Chunks",
    "Columns",
    "DecodeInput",
    "Dilated",
    "DilatedConfig",
    "Dot",
    "Edges",
    "Entmax",
    "Explanation",
    "Full",
    "General",
    "Global",
    "GridRelative",
    "HardLookup",
    "KVCache",
    "LSHConfig",
    "LinearAttention",
    "LinearConfig",
    "Linformer",
    "LinformerConfig",
    "LongformerConfig",
    "Mask",
    "Mechanism",
    "ModuleProperties",
    "Normalizer",
    "NormalizerConfig",
    "Not",
    "Or",
    "Out",
    "Packed",
    "Padded",
    "Pairs",
    "Performer",
    "PerformerConfig",
    "Plan",
    "Prefix",
    "Range",
    "Reach",
    "Refused",
    "Relative",
    "Same",
    "Scattered",
    "Score",
    "Segment",
    "Segmented",
    "SegmentsConfig",
    "Sigmoid",
    "Sinks",
    "Sizes",
    "Slots",
    "SoftCap",
    "Softmax",
    "SoftmaxConfig",
    "SoftmaxNormalizer",
    "SparseConfig",
    "Strided",
    "StridedConfig",
    "Talking",
    "TalkingConfig",
    "Tile",
    "TokenPosition",
    "TopKConfig",
    "TopKSoftmax",
    "Verdict",
    "Window",
    "WindowConfig",
    "attend",
    "explain",
    "run",
]
