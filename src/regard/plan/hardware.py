"""Accelerators by their data sheets: memory, dense bfloat16 FLOP/s, and bytes per second between devices."""

from typing import NamedTuple


class Hardware(NamedTuple):
    """One device of a kind."""

    memory: float  # bytes
    flops: float  # per second, dense, bfloat16
    link: float  # bytes per second to its neighbors


#: NVIDIA's data sheets (NVLink in one direction); the share of these FLOP/s that training reaches is an assumption.
HARDWARE = {
    "a100": Hardware(80e9, 312e12, 300e9),
    "h100": Hardware(80e9, 989e12, 450e9),
    "h200": Hardware(141e9, 989e12, 450e9),
    "b200": Hardware(180e9, 2250e12, 900e9),
}
#: Share of the peak that training reaches: 0.46 for PaLM (Chowdhery et al. 2022), 0.38 to 0.43 for Llama 3 (2024).
UTILIZATION = 0.4
