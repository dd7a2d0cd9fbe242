"""Run the attacks: `python -m bench.torture [--scale 0.05] [--only kills,damages] [--markdown FILE]`.

At scale 1 (an hour on two cores): 200 kills, 200 damages, 30 full disks, 10,000 mutations, 500 imports, 60 payloads,
40 archives, 500 requests, 60 crash images, 20 pairs of processes, a soak of five minutes. The exit code is 1 if
anything was lost, ended in a traceback, hung for more than ten seconds of processor time, changed an answer without a
word, or ran code.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import regard.commands.train  # noqa: F401 (forked processes have it already)
from bench.torture import (
    archives,
    damages,
    disk_full,
    imports,
    kills,
    mutations,
    payloads,
    power_loss,
    requests,
    together,
)
from bench.torture.room import Tally

Attack = Callable[[Path, int, int], Tally]
ATTACKS: dict[str, tuple[Attack, int]] = {
    "kills": (kills.attack, 200),
    "damages": (damages.attack, 200),
    "disk_full": (disk_full.attack, 30),
    "mutations": (mutations.attack, 10_000),
    "imports": (imports.attack, 500),
    "payloads": (payloads.attack, 60),
    "archives": (archives.attack, 40),
    "requests": (requests.attack, 500),
    "power_loss": (power_loss.attack, 60),
    "together": (together.attack, 20),
    "soak": (requests.soak, 300),
}
FAULTS = ("lost", "tracebacks", "hangs", "silent", "executed")


def table(tallies: list[Tally]) -> str:
    """The counts as a Markdown table."""
    rows = [f"| attack | tried | {' | '.join(FAULTS)} | |", "|---" * (len(FAULTS) + 3) + "|"]
    for one in tallies:
        notes = ", ".join(f"{name}: {value}" for name, value in one.notes.items())
        counts = " | ".join(str(getattr(one, fault)) for fault in FAULTS)
        rows.append(f"| {one.attack} | {one.tried:,} {one.unit} | {counts} | {notes} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tallies = []
    for name in chosen.only.split(","):
        attack, count = ATTACKS[name]
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder:
            began = time.monotonic()
            tally = attack(Path(folder).resolve(), max(2, round(count * chosen.scale)), chosen.seed)
        tally.notes["s"] = round(time.monotonic() - began)
        tallies.append(tally)
        print(f"{tally.attack}: {tally.tried} {tally.unit}, {tally.faults} faults, {tally.notes}", flush=True)
        for example in tally.examples:
            print(f"  {example}", flush=True)
    if chosen.markdown:
        chosen.markdown.write_text(table(tallies) + "\n")
    return int(any(tally.faults for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
