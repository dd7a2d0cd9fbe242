"""Scores of queries and keys; and biases: functions of a score and the positions of its pair.

A bias is applied after scaling and before the mask.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention.masks.edge_list import EdgeList
from regard.attention.slots import Pairs, table_at
from regard.errors import UserError


class Score(nn.Module):
    """Base: ``forward(q [B,H,Q,Dq], k [B,H,K,Dk]) -> [B,H,Q,K]``. ``width_scaled``: divided by √D by default."""

    width_scaled = False
    per_head = True  # the scores of a head follow from its own queries and keys


class Dot(Score):
    """q·k, scaled by 1/√D so that the variance does not grow with the width (Vaswani et al. 2017, eq. 1)."""

    width_scaled = True

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1)


class General(Score):
    """qᵀ W k, also between different widths (Luong et al. 2015, eq. 8)."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_width, key_width))
        nn.init.normal_(self.weight, std=1 / math.sqrt(query_width * key_width) ** 0.5)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.weight @ k.transpose(-2, -1)


class Additive(Score):
    """vᵀ tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2).

    ``key_width`` None: the keys given are U k already, for decoders that multiply them once for all steps.
    """

    def __init__(self, query_width: int, key_width: int | None, hidden: int):
        super().__init__()
        self.query = nn.Linear(query_width, hidden, bias=False)
        self.key = nn.Identity() if key_width is None else nn.Linear(key_width, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        both = self.query(q)[..., :, None, :] + self.key(k)[..., None, :, :]  # [B,H,Q,K,hidden]
        return self.out(both.tanh()).squeeze(-1)


class Bias(nn.Module):
    """Base: ``adjust(score, pairs) -> score``, elementwise, so that dense code and kernels share it.

    ``additive``: ``adjust(s, p) = s + f(p)``, so that the bias can be passed as a float mask.
    """

    additive = True

    def init(self, table: Callable[[Tensor], object]) -> None:
        """Initialize learned tables, which have two or more axes, by ``table``; vectors keep their values."""
        for parameter in self.parameters(recurse=False):
            if parameter.ndim >= 2:
                table(parameter)

    def learned(self) -> list[Tensor]:
        """The tensors that get gradients."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        raise NotImplementedError


class AddedTensor(Bias):
    """A tensor [B|1, H|1, Q, K] that is added to the scores, by the orders of the pair."""

    def __init__(self, added: Tensor):
        super().__init__()
        self.added = added

    def learned(self) -> list[Tensor]:
        return [self.added] if self.added.requires_grad else []

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return score + table_at(self.added, pairs).to(score.dtype)


class AddedEdges(Bias):
    """A number per head that is added to the scores of each pair of a list: ``values`` [E, H]."""

    def __init__(self, mask: EdgeList, values: Tensor):
        super().__init__()
        self.mask, self.values = mask, values

    def learned(self) -> list[Tensor]:
        return [self.values] if self.values.requires_grad else []

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        number = self.mask.find(pairs)
        if not len(self.values):
            return score
        place = number.clamp(min=0) * self.values.shape[1] + pairs.head
        added = self.values.flatten().index_select(0, place.flatten()).view(place.shape)  # its gradient is fast
        return score + torch.where(number < 0, 0, added.to(score.dtype))


class Alibi(Bias):
    """A penalty that grows with distance, steeper in some heads than in others (Press et al. 2022, sec. 3)."""

    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return score - self.slopes[pairs.head].to(score.dtype) * (pairs.q.phase - pairs.k.phase).abs()


def alibi_slopes(heads: int) -> list[float]:
    """The paper's geometric series; for head counts that are not a power of two, its interleaved extension."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


class Relative(Bias):
    """A learned number r per head and clipped distance (Shaw et al. 2018, sec. 3.2; a scalar rather than a vector).

    ``scale`` multiplies it: with the scale of the scores, 1/√d, the softmax is over (q·k + r_ij)/√d, r inside the
    scale; with 1 over q·k/√d + r_ij.
    """

    def __init__(self, heads: int, distance: int, scale: float = 1.0):
        super().__init__()
        self.distance, self.scale = distance, scale
        self.table = nn.Parameter(torch.zeros(heads, 2 * distance + 1))

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        apart = (pairs.q.phase - pairs.k.phase).clamp(-self.distance, self.distance) + self.distance
        return score + self.table[pairs.head, apart] * self.scale


class RelativeBuckets(Bias):
    """A learned number per head and bucket of distances, wider with distance (T5: Raffel et al. 2020, sec. 2.1).

    The bucket of a distance comes from a table: a logarithm per pair would be expensive, and rounds differently on
    different devices.
    """

    bucket: Tensor  # [2 furthest + 1], for distances from -furthest to furthest

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, *, causal: bool = True):
        super().__init__()
        self.furthest = furthest
        apart = torch.arange(-furthest, furthest + 1)
        self.register_buffer("bucket", t5_bucket(apart, buckets, furthest, causal=causal), persistent=False)
        self.table = nn.Parameter(torch.zeros(heads, buckets))

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        apart = (pairs.q.phase - pairs.k.phase).clamp(-self.furthest, self.furthest) + self.furthest
        return score + self.table[pairs.head, self.bucket[apart]]


def t5_bucket(apart: Tensor, buckets: int, furthest: int, *, causal: bool) -> Tensor:
    """The bucket of a key that lies ``apart`` before its query (below zero: after it).

    The near half of the buckets hold one distance each, the others grow logarithmically up to ``furthest``. Causal:
    later keys share the bucket of distance 0. Otherwise half of the buckets are for later keys. float32, as in the
    released models: a boundary at an integer must round to the same side.

    >>> t5_bucket(torch.tensor([0, 3, 7, 8, 20, 500, -5]), 16, 64, causal=True).tolist()
    [0, 3, 7, 8, 11, 15, 0]
    """
    after = 0 if causal else (apart < 0) * (buckets // 2)
    distance = apart.clamp(min=0) if causal else apart.abs()
    buckets = buckets if causal else buckets // 2
    exact = buckets // 2
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact)
    wide = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return after + torch.where(distance < exact, distance, wide)


class GridRelative(Bias):
    """A learned number per head and (row, column) distance, for phases of two axes (Liu et al. 2021, eq. 4).

    Distances beyond the table are clipped, so that larger images are possible. ``outside``: tokens that are in no place
    of the grid, such as a class token, have phases below zero; three more numbers per head are for pairs of an outer
    key, of an outer query, and of both (Bao et al. 2022, as in the code of BEiT).
    """

    def __init__(self, heads: int, rows: int, columns: int, scale: float = 1.0, *, outside: bool = False):
        super().__init__()
        self.rows, self.columns, self.scale = rows - 1, columns - 1, scale  # the greatest distances
        self.table = nn.Parameter(torch.zeros(heads, 2 * rows - 1, 2 * columns - 1))
        self.outer_table = nn.Parameter(torch.zeros(heads, 3)) if outside else None

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        apart = pairs.q.phase - pairs.k.phase  # [..., 2]
        if apart.is_floating_point():
            raise UserError("a learned bias per patch distance needs integer distances; give the phases as integers")
        down = apart[..., 0].clamp(-self.rows, self.rows) + self.rows
        across = apart[..., 1].clamp(-self.columns, self.columns) + self.columns
        added = self.table[pairs.head, down, across]
        if self.outer_table is not None:
            outer = 2 * (pairs.q.phase[..., 0] < 0).long() + (pairs.k.phase[..., 0] < 0).long()  # 0: both are inside
            added = torch.where(outer > 0, self.outer_table[pairs.head, (outer - 1).clamp(min=0)], added)
        return score + added * self.scale


class SoftCap(Bias):
    """cap·tanh(score / cap), within (-cap, cap). Not additive: it is a function of the score itself."""

    additive = False

    def __init__(self, cap: float):
        super().__init__()
        self.cap = cap

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)


class Chain(Bias):
    """Several biases, one after the other."""

    def __init__(self, *parts: Bias):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    @property
    def additive(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(part.additive for part in self.parts)

    def learned(self) -> list[Tensor]:
        return [tensor for part in self.parts if isinstance(part, Bias) for tensor in part.learned()]

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        for part in self.parts:
            assert isinstance(part, Bias)
            score = part.adjust(score, pairs)
        return score
