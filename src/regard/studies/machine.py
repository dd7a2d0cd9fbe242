"""The machine, in words."""

from __future__ import annotations

import torch


def machine(device: torch.device) -> str:
    """What the figures of a study were measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU with {torch.get_num_threads()} threads, torch {torch.__version__.split('+')[0]}"
