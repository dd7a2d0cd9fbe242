"""One attention operator. Masks, biases, scores, normalizers, caches and backends are values passed to it.

The names imported here are the public ones.
"""

from regard.attention.attention_config import AttentionConfig, LayerSpec, SoftmaxConfig
from regard.attention.backends.blocked import Blocked
from regard.attention.backends.choose import BACKENDS, BackendRefused, Explanation, explain, run
from regard.attention.bias import Alibi, Bias, Chain, GridRelative, Relative, RelativeBuckets, SoftCap
from regard.attention.cache import CacheIndex, CacheWrite, DecodeInput, KVCache
from regard.attention.call import Backend, Call, Out, Plan, allowed, dense_pairs
from regard.attention.masks.mask import And, Full, Mask, Not, Or
from regard.attention.masks.patterns import (
    Causal,
    Chunks,
    Columns,
    Dilated,
    Global,
    Prefix,
    Scattered,
    Sinks,
    Strided,
    Window,
)
from regard.attention.masks.summary import BlockBounds, BlockVerdict, Reach
from regard.attention.masks.tables import Blocks, Edges, Same
from regard.attention.masks.token_masks import Spans, Tagged
from regard.attention.mechanism import Mechanism, Softmax, attend
from regard.attention.mechanisms.linear import LinearAttention, LinearConfig
from regard.attention.mechanisms.linformer import Linformer, LinformerConfig
from regard.attention.mechanisms.lsh import LSH, LSHConfig
from regard.attention.mechanisms.masked import (
    BigBirdConfig,
    DilatedConfig,
    LongformerConfig,
    MaskedAttentionConfig,
    SparseConfig,
    StridedConfig,
    WindowConfig,
)
from regard.attention.mechanisms.performer import Performer, PerformerConfig
from regard.attention.mechanisms.segments import Segment, Segmented, SegmentsConfig
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
from regard.attention.weigh import repeat_kv
