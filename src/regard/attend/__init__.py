"""One attention operator. Masks, biases, scores, caches and backends are values passed to it."""

from regard.attend.bias import Alibi, Bias, Buckets, Chain, GridRelative, Relative, SoftCap
from regard.attend.blocked import Blocked
from regard.attend.call import Backend, Call, Out, Plan, TopK
from regard.attend.choose import BACKENDS, Explanation, Refused, explain, run
from regard.attend.family import AttentionConfig, Sizes, SoftmaxConfig, WindowConfig
from regard.attend.linear import LinearAttention, LinearConfig
from regard.attend.linformer import Linformer, LinformerConfig
from regard.attend.lsh import LSH, LSHConfig
from regard.attend.mask import (
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
from regard.attend.mechanism import Mechanism, Softmax, attend
from regard.attend.memory import Arrival, KeyValues, Landing, Memory
from regard.attend.patterns import Chunks, Columns, Scattered, Sinks
from regard.attend.performer import Performer, PerformerConfig
from regard.attend.score import Additive, Dot, General, Score
from regard.attend.segments import Segment, Segmented, SegmentsConfig
from regard.attend.slots import AnySlots, Packed, Padded, Pairs, Range, Seat, Slots
from regard.attend.sparse import BigBirdConfig, DilatedConfig, LongformerConfig, SparseConfig, StridedConfig
from regard.attend.tables import Blocks, Edges, Same
from regard.attend.talking import Talking, TalkingConfig
from regard.attend.topk import TopKConfig

__all__ = [
    "BACKENDS",
    "LSH",
    "Additive",
    "Alibi",
    "And",
    "AnySlots",
    "Arrival",
    "AttentionConfig",
    "Backend",
    "Bias",
    "BigBirdConfig",
    "Blocked",
    "Blocks",
    "Buckets",
    "Call",
    "Causal",
    "Chain",
    "Chunks",
    "Columns",
    "Dilated",
    "DilatedConfig",
    "Dot",
    "Edges",
    "Explanation",
    "Full",
    "General",
    "Global",
    "GridRelative",
    "KeyValues",
    "LSHConfig",
    "Landing",
    "LinearAttention",
    "LinearConfig",
    "Linformer",
    "LinformerConfig",
    "LongformerConfig",
    "Mask",
    "Mechanism",
    "Memory",
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
    "Seat",
    "Segment",
    "Segmented",
    "SegmentsConfig",
    "Sinks",
    "Sizes",
    "Slots",
    "SoftCap",
    "Softmax",
    "SoftmaxConfig",
    "SparseConfig",
    "Strided",
    "StridedConfig",
    "Talking",
    "TalkingConfig",
    "Tile",
    "TopK",
    "TopKConfig",
    "Verdict",
    "Window",
    "WindowConfig",
    "attend",
    "explain",
    "run",
]
