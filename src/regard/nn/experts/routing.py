"""Routing: the experts of each token, their weights, and the losses that balance their use.

    T tokens   E experts   A active experts per token   R = T·A pairs of a token and an expert

Routing is a function of each token alone (the two losses are means over all tokens) and deterministic: of equal
probabilities the expert of lower index wins, and pairs are sorted stably.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Route(NamedTuple):
    """The experts of each token."""

    experts: Tensor  # [T, A], the best first
    gates: Tensor  # [T, A], the weights of their outputs
    probabilities: Tensor  # [T, E]


class Order(NamedTuple):
    """The R pairs, sorted by expert and, within one, by token."""

    token: Tensor  # [R], the token of each sorted pair
    pair: Tensor  # [R], its index (token · A + rank) before sorting
    place: Tensor  # [R], the sorted index of each pair: the inverse of ``pair``
    ends: Tensor  # [E], the end of each expert's pairs


def route(logits: Tensor, active: int, normalise: bool) -> Route:
    """The ``active`` best of softmax(logits [T, E]); their gates are its values (Fedus et al. 2022, eq. 1-2).

    ``normalise``: divided by their sum, which is the softmax over the chosen logits (Jiang et al. 2024, sec. 2.1).
    """
    probabilities = logits.softmax(-1)
    left, chosen = probabilities.detach(), []
    for _ in range(active):  # argmax returns the first of equals; topk does not guarantee it
        best = left.argmax(-1, keepdim=True)
        chosen.append(best)
        left = left.scatter(-1, best, -1.0)
    experts = torch.cat(chosen, -1) if active > 1 else chosen[0]
    gates = probabilities.gather(-1, experts)
    return Route(experts, gates / gates.sum(-1, keepdim=True) if normalise else gates, probabilities)


def order(experts: Tensor, count: int) -> Order:
    """Sort the pairs of experts [T, A] by expert; there are ``count`` experts."""
    sorted_, pair = experts.flatten().sort(stable=True)
    numbers = torch.arange(len(pair), device=pair.device)
    place = torch.empty_like(pair).scatter(0, pair, numbers)
    ends = torch.searchsorted(sorted_, numbers[:count] if count <= len(pair) else _numbers(count, pair), right=True)
    return Order(pair // experts.shape[1], pair, place, ends)


def share(experts: Tensor, count: int) -> Tensor:
    """The share of all pairs that each expert gets: [E], in float32."""
    chosen = experts.flatten()[:, None] == _numbers(count, experts)
    return chosen.sum(0).float() / experts.numel()


def balance_loss(share: Tensor, probabilities: Tensor) -> Tensor:
    """E · Σᵢ fᵢ Pᵢ (Fedus et al. 2022, eq. 4-6): 1 when all experts are used equally, up to E when one gets all.

    f is the share of pairs (of tokens, where one expert is active), P the mean probability; only P has a gradient.
    """
    return len(share) * (share.to(probabilities.dtype) * probabilities.mean(0)).sum()


def z_loss(logits: Tensor) -> Tensor:
    """The mean of (log Σ exp logits)² (Zoph et al. 2022, eq. 5): keeps a router's logits small."""
    return logits.logsumexp(-1).square().mean()


def _numbers(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device, dtype=like.dtype)
