"""Random seeds: a run has one, from which every purpose derives its own."""

import hashlib
import struct

import torch

#: The purpose of a derived seed; different purposes give independent streams.
WEIGHTS, DROPOUT, ADAPTERS = 0, 1, 2


def derive_seed(seed: int, *numbers: int) -> int:
    """A 63-bit seed from ``seed`` and ``numbers``, by hashing: the same on every machine."""
    text = b"".join(struct.pack("<q", number) for number in (seed, *numbers))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_generators(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which also queries absent device types, but for the CPU and one device only."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
