"""A Transformer over the nodes of graphs: attention along the edges, or between all nodes with biases by the edges.

It has no positions: what distinguishes nodes is their kind, numbers that describe them (degree, random walks,
Laplacian eigenvectors: Dwivedi & Bresson 2021) and the edges. With attention `gat` its layers are those of graph
attention networks (Veličković et al. 2018) inside Transformer blocks; a bias by the length of the shortest path is
Graphormer's (Ying et al. 2021, eq. 6), and like it is shared by all layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from regard.attention import AddedEdges, AddedTensor, Bias, EdgeList, Edges, Full, Mask, Padded, Softmax
from regard.attention.score import alibi_slopes
from regard.config import option
from regard.errors import UserError
from regard.models.base import ArrayEncoder
from regard.models.parts import BlocksConfig
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.heads import (
    ClassesHeadConfig,
    HeadConfig,
    LinksHeadConfig,
    TokenClassesHeadConfig,
    ValuesHeadConfig,
    pooled,
)
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.positions.position import NoRotation, Position

DENSE = 512  # nodes of the largest graph whose pairs become a table; of larger ones, edges are listed
SEED, DESCRIPTIONS = 11, 64  # of the different nodes of tests
HEADS = (ClassesHeadConfig, TokenClassesHeadConfig, ValuesHeadConfig, LinksHeadConfig)


@dataclass(frozen=True)
class GraphConfig(BlocksConfig, kind="graph"):
    """Sizes and parts of a graph Transformer. The first four follow from the data."""

    generates, reads, vocabulary = False, "graphs", 0
    context: int = option(32, "nodes of a graph, for estimates of cost; graphs of any size are read", least=1)
    kinds: int = option(1, "kinds of nodes, such as elements, or the nodes themselves", least=1)
    edge_kinds: int = option(1, "kinds of edges", least=1)
    numbers: int = option(0, "numbers that describe a node", least=0)
    local: bool = option(True, "attention along the edges and to the node itself; false: between all nodes")
    distances: int = option(
        0, "with local = false: a bias by the shortest path, if it has up to so many edges", least=0
    )
    head: HeadConfig = field(default_factory=TokenClassesHeadConfig)

    def check(self) -> None:
        super().check()
        if self.distances == 1:
            raise ValueError("distances must be 0 or at least 2")
        if self.distances and self.local:
            raise ValueError("distances are for attention between all nodes; set local = false")
        if not isinstance(self.head, HEADS):
            raise ValueError(
                f"the head of a graph model is {', '.join(one.kind for one in HEADS)}, not {self.head.kind}"
            )
        self.head.check()
        if self.head.pool == "cls":
            raise ValueError("a graph has no class token; set head.pool = mean")
        if not isinstance(self.attention.pattern(), Full):
            raise ValueError(f"the mask {self.attention.pattern()} follows from an order, which nodes do not have")

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if shape is None or len(shape) != 4:
            raise UserError(
                "a graph Transformer reads graphs; choose --data nodes, links or graphs, or another --model"
            )
        nodes, kinds, edge_kinds, numbers = shape
        return replace(self, context=nodes, kinds=kinds, edge_kinds=edge_kinds, numbers=numbers)

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> Self:
        return replace(self, head=ClassesHeadConfig(len(labels), labels, pool=pool or "mean"))

    def with_values(self, values: int) -> Self:
        head = self.head if isinstance(self.head, ValuesHeadConfig) else ValuesHeadConfig()
        return replace(self, head=replace(head, values=values))

    def make(self) -> GraphTransformer:
        return GraphTransformer(self)


class GraphStructure(NamedTuple):
    """The edges of a batch of graphs as the operator takes them."""

    mask: Mask
    bias: Bias


class GraphTransformer(ArrayEncoder):
    """Nodes [B, N] with numbers [B, N, F] and edges [B, E, 3] to features [B, N, C] and what the head makes of them."""

    config: GraphConfig
    blocks: Stack
    positional, compilable = False, False  # the number of edges differs from batch to batch

    def __init__(self, config: GraphConfig):
        super().__init__(config)
        c = config
        self.embed = nn.Embedding(c.kinds, c.width)
        self.embed_numbers = Linear(c.numbers, c.width) if c.numbers else None
        self.drop = nn.Dropout(c.dropout)
        self.embed_edge = nn.Embedding(c.edge_kinds + 1, c.heads)  # the last: of a node to itself
        self.embed_distance = nn.Embedding(c.distances, c.heads) if c.distances else None  # the last: further away
        self.blocks = c.block.stack(c.build_block(c.attention, Position()) for _ in range(c.layers))
        mechanism = self.blocks.layers[0].attention.mechanism
        if not isinstance(mechanism, Softmax):
            raise UserError(
                f"attention {c.attention.kind} has no score for each edge; set --model.attention softmax or gat"
            )
        self.plan = mechanism.plan
        self.norm = c.build_final_norm()
        outputs = c.head.outputs(0)
        assert outputs is not None
        relations = c.head.relations if isinstance(c.head, LinksHeadConfig) else 0
        self.embed_relation = nn.Embedding(relations, c.width) if relations else None
        self.transform = c.head.transform(c.width, c.norm)
        self.unembed = Linear(c.width, outputs, bias=c.head.bias)
        self.masks = [Full()]
        self.reset()

    def reset(self) -> None:
        """Xavier's uniform weights and nodes of variance 1; no kind of edge is preferred."""
        initialize(self, nn.init.xavier_uniform_, normal(1.0))
        if isinstance(self.unembed, Linear):
            self.unembed.init(normal(0.02) if self.embed_relation is None else nn.init.ones_)
        nn.init.zeros_(self.embed_edge.weight)
        if self.embed_distance is not None:  # some heads begin near, others far, as ALiBi's (Press et al. 2022)
            slopes = 8 * torch.tensor(alibi_slopes(self.config.heads), device=self.embed.weight.device)
            steps = torch.arange(1, self.config.distances + 1, device=slopes.device)
            with torch.no_grad():
                self.embed_distance.weight.copy_(-steps[:, None] * slopes)
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * self.config.layers) ** -0.5)

    def features(self, numbers: Tensor, nodes: Tensor, edges: Tensor, queries: Tensor | None = None) -> Tensor:
        """Features [B, N, C]; -1 marks padding of nodes [B, N] and of edges [B, E, 3], which are (node, seen, kind)."""
        c, real = self.config, nodes >= 0
        if numbers.shape[2] != c.numbers:
            raise UserError(
                f"this model reads graphs whose nodes have {c.numbers} numbers each, not {numbers.shape[2]}"
            )
        x = self.embed(nodes.clamp(min=0))
        x = self.drop(x if self.embed_numbers is None else x + self.embed_numbers(numbers))
        mask, bias = self._structure(nodes, edges)
        plan = self.plan(mask, Padded(real.sum(1), nodes.shape[1]), like=x, bias=bias)
        contexts = [AttentionContext(plan, NoRotation())] * c.layers
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def _structure(self, nodes: Tensor, edges: Tensor) -> GraphStructure:
        """Mask and biases: tables of all pairs for small graphs, and lists for large ones."""
        c, (batch, count) = self.config, nodes.shape
        own = torch.arange(count, device=nodes.device)[:, None].expand(batch, -1, 2)
        itself = torch.full_like(own[..., :1], c.edge_kinds)
        edges = torch.cat((edges, torch.cat((own, itself), 2)), 1)
        if count > DENSE:
            return self._listed(edges, count)
        real, (query, key, kind) = edges[..., 0] >= 0, edges.clamp(min=0).unbind(-1)
        row = torch.arange(batch, device=nodes.device)[:, None].expand_as(query)
        values = self.embed_edge(kind) * real[..., None]  # [B, E, H]; a pair with several edges has the sum
        table = values.new_zeros(batch, count, count, c.heads).index_put((row, query, key), values, accumulate=True)
        times = values.new_zeros(batch, count, count).index_put((row, query, key), real.to(values), accumulate=True)
        near = times > 0
        if self.embed_distance is not None:
            table = table + self.embed_distance(shortest_paths(near, c.distances + 1) - 2) * ~near[..., None]
        return GraphStructure(Edges(near) if c.local else Full(), AddedTensor(table.permute(0, 3, 1, 2)))

    def _listed(self, edges: Tensor, count: int) -> GraphStructure:
        """The same as lists, for graphs of ``count`` nodes."""
        c = self.config
        if c.distances:
            raise UserError(f"a graph of {count:,} nodes is too large for distances, which are for {DENSE}; set 0")
        listed = EdgeList.of(edges[..., :2], count)
        row, place = (edges[..., 0] >= 0).nonzero(as_tuple=True)
        query, key, kind = edges[row, place].unbind(-1)
        number = torch.searchsorted(listed.codes, (row * count + query) * count + key)
        added = self.embed_edge.weight.new_zeros(len(listed.codes), c.heads).index_add(0, number, self.embed_edge(kind))
        return GraphStructure(listed if c.local else Full(), AddedEdges(listed, added))

    def slots(self, x: Tensor, *inputs: Tensor) -> Padded:
        return Padded((inputs[1] >= 0).sum(1), x.shape[1])

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The features of all nodes, their mean [B, C], or of each question those of its answers, [B, Q, N, C]."""
        if self.embed_relation is not None:
            nodes, relations = inputs[3].unbind(-1)
            asked = x[torch.arange(len(x), device=x.device)[:, None], nodes] * self.embed_relation(
                relations
            )  # [B, Q, C]
            return asked[:, :, None] * x[:, None]
        pool = self.config.head.pool
        return x if pool is None else pooled(x, inputs[1] >= 0, pool)

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C] to logits, values or scores [..., outputs]."""
        return self.unembed(self.transform(x))

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Nodes whose kind and numbers follow from their token, and edges from those of both ends."""
        c, generator = self.config, torch.Generator().manual_seed(SEED)
        book = torch.randn(DESCRIPTIONS, c.numbers, generator=generator).to(self.embed.weight)
        one, other = tokens[:, :, None].expand(-1, -1, tokens.shape[1]), tokens[:, None]
        place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(one)
        edges = torch.stack((place.mT, place, one * other % c.edge_kinds), -1)
        edges = torch.where(((one + other) % 3 == 0)[..., None], edges, -1).flatten(1, 2)
        inputs = (book[tokens % DESCRIPTIONS], tokens % c.kinds, edges)
        if not isinstance(c.head, LinksHeadConfig):
            return inputs
        asked = torch.stack((torch.zeros_like(tokens), tokens % c.head.relations), 2)  # about the first node
        return (*inputs, asked)

    def places(self, numbers: Tensor, nodes: Tensor, *others: Tensor) -> list[str]:
        """The numbers of the nodes, from 1 on."""
        return [f"{node} " for node in range(1, nodes.shape[1] + 1)]

    def links(self, numbers: Tensor, nodes: Tensor, edges: Tensor, *others: Tensor) -> Tensor:
        return edges[0, edges[0, :, 0] >= 0, :2]


def shortest_paths(near: Tensor, most: int) -> Tensor:
    """The number of edges from each node to each, [B, N, N], of at least 2; ``most``: it has so many or more."""
    step, reached = near.to(torch.float32), near
    found = torch.full(near.shape, most, device=near.device)
    for length in range(2, most):
        further = (reached.to(step.dtype) @ step > 0) & ~reached
        found = found.masked_fill(further, length)
        reached = reached | further
    return found
