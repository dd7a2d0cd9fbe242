"""The machine of a measurement in words."""

from __future__ import annotations

import torch


def machine(device: torch.device) -> str:
    """The name of the GPU, or the number of CPU threads and the version of torch."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU with {threads} thread{'s' * (threads != 1)}, torch {torch.__version__.split('+')[0]}"
