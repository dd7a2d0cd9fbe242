"""Second held-out list: sound experts, repeated blocks, hypernetworks, memories and hashes."""

import torch
from second_held_out_kit import Block, Decoder, Mlp, under_test
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

SOUND = Entries()


class SoftExperts(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share, choice = self.router(x).softmax(-1).topk(2, -1)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        picked = every.gather(-2, choice[..., None].expand(*choice.shape, x.shape[-1]))
        return (picked * share[..., None]).sum(-2)


@SOUND()
def experts_without_capacity():
    """The two best of four experts, for every token alone."""
    return under_test(lambda v: Decoder(v, block=lambda w, h: Block(w, h, mlp=SoftExperts(w))), 31, 16)


class Universal(Decoder):
    def __init__(self, vocabulary: int):
        super().__init__(vocabulary, layers=1)
        self.round = nn.Embedding(6, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.inputs(tokens), self.mask(tokens)
        for i in range(6):
            x = self.blocks[0](x + self.round.weight[i], mask)
        return self.head(self.norm(x))


@SOUND()
def universal_depth():
    """One block, six times, with a vector for each round."""
    return under_test(Universal, 31, 20)


class Halting(Decoder):
    """Each position stops on its own; keys of stopped positions stay as they are."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary, layers=1)
        self.stop = nn.Linear(32, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.inputs(tokens), self.mask(tokens)
        left = torch.ones_like(x[..., :1])
        for _ in range(5):
            p = torch.sigmoid(self.stop(x))
            x = left * self.blocks[0](x, mask) + (1 - left) * x
            left = left * (1 - p)
        return self.head(self.norm(x))


@SOUND()
def adaptive_depth():
    """Adaptive computation time for each position."""
    return under_test(Halting, 31, 16)


class Hyper(nn.Module):
    """The weights of the second layer and of the head are made from learned codes."""

    def __init__(self, vocabulary: int, width: int = 16):
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.embed, self.body = nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)
        self.codes = nn.Parameter(torch.randn(2, 6))
        self.layer, self.out = nn.Linear(6, width * width), nn.Linear(6, vocabulary * width)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.body(self.embed(tokens))
        x = torch.tanh(x @ self.layer(self.codes[0]).view(self.width, self.width))
        return x @ self.out(self.codes[1]).view(self.vocabulary, self.width).T


@SOUND()
def hypernetwork():
    """Layers whose weights another network makes."""
    return under_test(Hyper, 31, 16)


class Memory(Decoder):
    keys: Tensor
    values: Tensor

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.register_buffer("keys", torch.randn(200, 32))
        self.register_buffer("values", torch.randint(vocabulary, (200,)))
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.inputs(tokens), self.mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        keys = self.keys.to(x.dtype)
        near = (2 * x @ keys.T - keys.square().sum(-1)) / 20  # minus the squared distance, up to a constant
        found = near.softmax(-1) @ F.one_hot(self.values, self.vocabulary).to(x.dtype)
        return torch.log(0.7 * self.head(x).softmax(-1) + 0.3 * found + 1e-6)


@SOUND()
def retrieval_memory():
    """A kNN language model: a memory of 200 keys, in buffers, mixed with the softmax."""
    return under_test(Memory, 31, 16)


class Hashed(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(257, 24) for _ in range(4))
        self.mlp, self.head = Mlp(24), nn.Linear(24, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        index, x = torch.zeros_like(tokens), 0
        for back, table in enumerate(self.tables):
            index = (index * 1_000_003 + F.pad(tokens + 1, (back, 0))[:, : tokens.shape[1]]) % 2_147_483_647
            x = x + table(index % 257)
        return self.head(x + self.mlp(x))


@SOUND()
def ngram_hashes():
    """Hashed embeddings of the last 1 to 4 tokens."""
    return under_test(Hashed, 101, 20)
