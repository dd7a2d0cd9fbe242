"""One attention operator. Masks, biases, scores, normalizers, caches and backends are values passed to it.

The names imported here are the public ones.
"""

from regard.attention.backends.choose import BACKENDS, BackendRefused, Explanation, explain, run
from regard.attention.cache import CacheIndex, DecodeInput, KVCache
from regard.attention.call import Backend, Call, Out, Plan, allowed, dense_pairs, repeat_kv
from regard.attention.masks.edge_list import EdgeList
from regard.attention.masks.mask import And, BlockBounds, BlockVerdict, Full, Mask, Not, Or, Reach
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
from regard.attention.masks.tables import Blocks, Edges, Same, Spans, Tagged
from regard.attention.mechanism import (
    AttentionConfig,
    LayerSpec,
    Mechanism,
    ModuleProperties,
    Softmax,
    SoftmaxConfig,
    attend,
)
from regard.attention.mechanisms.gat import GATConfig, GraphScore
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
    TopKConfig,
    WindowConfig,
)
from regard.attention.mechanisms.performer import Performer, PerformerConfig
from regard.attention.mechanisms.recurrence import GatedMean, Recurrence, RecurrenceState
from regard.attention.mechanisms.segments import Segment, Segmented, SegmentsConfig
from regard.attention.mechanisms.statespace import S4D, SelectiveScan
from regard.attention.mechanisms.talking import Talking, TalkingConfig
from regard.attention.normalizer import (
    Entmax,
    HardLookup,
    Normalizer,
    NormalizerConfig,
    Sigmoid,
    SoftmaxNormalizer,
    TopKSoftmax,
)
from regard.attention.score import (
    AddedEdges,
    AddedTensor,
    Additive,
    Alibi,
    Bias,
    Chain,
    Dot,
    General,
    GridRelative,
    Relative,
    RelativeBuckets,
    Score,
    SoftCap,
)
from regard.attention.slots import AnySlots, Packed, Padded, Pairs, Range, Slots, TokenPosition
