"""Benches with settings for each device: their options, and how a setting is measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bench.interleave import LATEST, Contender, add_rounds, interleave
from regard.train.guard import keep_freed_memory


def add_settings(parser: argparse.ArgumentParser, settings: Mapping[str, Mapping[str, object]]) -> None:
    """Adds the options of a bench that has settings for each device."""
    parser.add_argument("--device", choices=sorted(settings), default="cpu")
    parser.add_argument("--settings", help="comma-separated; default: every setting of the device")
    add_rounds(parser)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a turn lasts in each round")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--out", type=Path, default=LATEST, help="where results are kept")


def chosen_settings(
    parser: argparse.ArgumentParser, chosen: argparse.Namespace, settings: Mapping[str, Mapping[str, object]]
) -> list[str]:
    """The settings to measure, after a check of their names."""
    known = settings[chosen.device]
    names = (chosen.settings or ",".join(known)).split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no setting {unknown[0]!r} on {chosen.device}; choose from {', '.join(known)}")
    return names


def prepare_process(chosen: argparse.Namespace) -> None:
    """Sets the threads and the memory of this process, for everyone alike, and says if the machine is busy."""
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    busy = os.getloadavg()[0]
    if chosen.device == "cpu" and busy > 0.5:
        print(f"the machine is busy (load {busy:.1f}): expect wide intervals", file=sys.stderr)


def interleave_setting(
    chosen: argparse.Namespace, setting: str, contenders: Sequence[Contender], warmup: int = 3
) -> dict[str, list[float]]:
    """`interleave` as the options say, with one line of progress that is rewritten."""
    rates = interleave(
        contenders,
        chosen.rounds,
        chosen.seconds,
        warmup,
        synchronize=torch.cuda.synchronize if chosen.device == "cuda" else lambda: None,
        progress=lambda line: print(f"\r\033[K{setting}: {line}", end="", file=sys.stderr, flush=True),
    )
    print("\r\033[K", end="", file=sys.stderr)
    return rates
