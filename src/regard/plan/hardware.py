"""Accelerators by their data sheets: memory, dense bfloat16 FLOP/s, and bytes per second between devices."""

from typing import NamedTuple


class Hardware(NamedTuple):
    """One device of a kind."""

    memory: float  # bytes
    flops: float  # per second, dense, bfloat16
    link: float  # bytes per second to its neighbors in a machine
    network: float | None = None  # bytes per second between machines, for each device; None: as ``link``

    def bandwidth(self, ranks: int, stride: int = 1) -> float:
        """Bytes per second of each rank of a group that takes every ``stride``-th device.

        A ring enters a machine by as many network cards as the group has devices there, and passes on inside.
        """
        inside = max(1, min(ranks, PER_MACHINE // stride))
        if inside == ranks or self.network is None:
            return self.link
        return min(self.link, inside * self.network)


PER_MACHINE = 8  # devices of a machine: that of NVIDIA's DGX systems
#: NVIDIA's data sheets (NVLink in one direction; a network card of 200 Gb/s per device in a DGX A100, of 400 Gb/s in
#: the others); the share of these FLOP/s that training reaches is an assumption, and the links reach less too.
HARDWARE = {
    "a100": Hardware(80e9, 312e12, 300e9, 25e9),
    "h100": Hardware(80e9, 989e12, 450e9, 50e9),
    "h200": Hardware(141e9, 989e12, 450e9, 50e9),
    "b200": Hardware(180e9, 2250e12, 900e9, 50e9),
}
#: Share of the peak that training reaches: 0.46 for PaLM (Chowdhery et al. 2022), 0.38 to 0.43 for Llama 3 (2024).
UTILIZATION = 0.4
#: Hours between unexpected interruptions of one device: 54 days x 16,384 / 419 for Llama 3 (2024, section 3.3.4).
HOURS_BETWEEN_FAILURES = 54 * 24 * 16384 / 419
#: Bytes per second that each rank writes into a checkpoint: an assumption.
WRITE = 1e9
