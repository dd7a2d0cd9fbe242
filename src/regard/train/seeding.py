"""Randomness as a function: a seed and some numbers give a seed, the same on every machine and day."""

import hashlib
import struct

import torch

#: What a seed is for; streams of different purposes never meet.
WEIGHTS, DROPOUT = 0, 1


def mix(seed: int, *numbers: int) -> int:
    """A well-spread 63-bit seed from `seed` and `numbers`."""
    text = b"".join(struct.pack("<q", number) for number in (seed, *numbers))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_generators(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, for the CPU and one device only: that one also asks every kind that is not there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
