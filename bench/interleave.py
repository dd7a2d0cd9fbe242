"""Who is faster, when the machine itself will not hold still.

The speed of a shared machine drifts by more than the differences we want to see. So contenders take turns: every round
times each of them for a few steps, in an order that rotates from round to round, and only times of the same round are
compared. What is reported is the median of the per-round ratios and an interval of that median from order statistics
(the sign test turned round): it assumes nothing about how times are distributed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LATEST = Path(__file__).with_name("latest.json")
FEWEST_ROUNDS = 6  # with fewer, no interval of the median has 95% confidence


@dataclass(frozen=True)
class Contender:
    """Something that takes a step when called; `work` is how many tokens one step handles."""

    name: str
    step: Callable[[], object]
    work: float


@dataclass(frozen=True)
class Entry:
    """One line of `latest.json`: `ours` and `peer` in tokens/s, `ratio` = ours over peer with its 95% interval."""

    bench: str
    setting: str
    ours: float
    peer: float
    peer_name: str
    ratio: float
    low: float
    high: float


def add_rounds(parser: argparse.ArgumentParser, default: int = 15) -> None:
    """Adds the option `--rounds`, which refuses what is too few before anything is measured."""

    def enough(text: str) -> int:
        if (rounds := int(text)) < FEWEST_ROUNDS:
            raise argparse.ArgumentTypeError(
                f"{rounds} rounds are too few for a 95% interval of the median; write --rounds {FEWEST_ROUNDS} or more"
            )
        return rounds

    parser.add_argument("--rounds", type=enough, default=default, help=f"at least {FEWEST_ROUNDS}")


def interleave(
    contenders: Sequence[Contender],
    rounds: int = 15,
    seconds: float = 1.0,
    warmup: int = 3,
    synchronize: Callable[[], object] = lambda: None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, list[float]]:
    """Tokens/s of every contender in every round.

    `seconds` is how long a contender's turn should last: the number of steps that takes is measured once, before the
    first round, and then kept. `synchronize` waits for the device where calls return before the work is done.
    """

    def timed(contender: Contender, steps: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            contender.step()
        synchronize()
        return time.perf_counter() - start

    steps: dict[str, int] = {}
    for contender in contenders:
        progress(f"warming up {contender.name}")
        timed(contender, warmup)
        steps[contender.name] = max(2, round(seconds * warmup / timed(contender, warmup)))
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        shift = number % len(contenders)
        for contender in [*contenders[shift:], *contenders[:shift]]:
            gc.collect()
            timed(contender, 1)  # refill caches with this contender's weights before the clock starts
            count = steps[contender.name]
            rates[contender.name].append(contender.work * count / timed(contender, count))
    return rates


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The median and an interval that holds the true median with at least that confidence.

    Of n draws, the number below the true median is Binomial(n, 1/2); so the r-th smallest and the r-th largest value
    enclose it with probability 1 - 2 P(Binomial < r). The largest r that keeps the confidence is used.

    >>> median_interval(range(15))
    (7, 3, 11)
    """
    ordered, n = sorted(values), len(values)
    miss, rank = 0.0, 0
    while rank < n // 2:
        miss += 2 * math.comb(n, rank) / 2**n
        if miss > 1 - confidence:
            break
        rank += 1
    if rank == 0:
        raise ValueError(f"{n} values are too few for a {confidence:.0%} interval of the median")
    return statistics.median(ordered), ordered[rank - 1], ordered[n - rank]


def compare(bench: str, setting: str, rates: dict[str, list[float]], ours: str, peers: Sequence[str]) -> list[Entry]:
    """One entry for each peer, the fastest first; entry 0 is therefore the one that a claim must rest on."""
    entries = []
    for peer in sorted(peers, key=lambda name: -statistics.median(rates[name])):
        ratio, low, high = median_interval([a / b for a, b in zip(rates[ours], rates[peer], strict=True)])
        speeds = (statistics.median(rates[ours]), statistics.median(rates[peer]))
        entries.append(Entry(bench, setting, round(speeds[0], 1), round(speeds[1], 1), peer, ratio, low, high))
    return entries


def save(entries: Sequence[Entry], path: Path = LATEST) -> None:
    """Puts the entries into the list at `path`, in place of earlier ones of the same bench, setting and peer."""
    fresh = [{k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(e).items()} for e in entries]
    replaced = {(e.bench, e.setting, e.peer_name) for e in entries}
    kept = json.loads(path.read_text()) if path.exists() else []
    kept = [old for old in kept if (old["bench"], old["setting"], old["peer_name"]) not in replaced]
    lines = ",\n".join("  " + json.dumps(entry) for entry in kept + fresh)
    path.write_text(f"[\n{lines}\n]\n")


def show(entries: Sequence[Entry]) -> None:
    """Prints the entries as a table for each bench and setting; plain text where `rich` is not installed."""
    header = ("peer", "ours, tokens/s", "peer's, tokens/s", "ours/peer", "95% interval")
    tables: dict[str, list[tuple[str, ...]]] = {}
    for e in entries:
        row = (e.peer_name, f"{e.ours:,.0f}", f"{e.peer:,.0f}", f"{e.ratio:.3f}", f"{e.low:.3f} - {e.high:.3f}")
        tables.setdefault(f"{e.bench}: {e.setting}", []).append(row)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for title, rows in tables.items():
            print(title, *("  ".join(row) for row in (header, *rows)), sep="\n")
        return
    for title, rows in tables.items():
        table = Table(title=title)
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
