"""Every model class of `transformers` that can be built small, tested with `regard prove`.

    python -m bench.gallery [--only NAME,NAME] [--json FILE] [--markdown FILE] [--workers 2]

Causal, masked, encoder-decoder and image classes, from their own configurations (`small_configs`), with random weights.
Each is tested in a process of its own with a time limit; a class that cannot be built says why.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.gallery_adapters import GROUPS, certificates
from bench.small_configs import small_configs

LARGEST = 150_000_000  # parameters
LIMIT = 300.0  # seconds for one class
CLAIMS = ("future", "padding", "batching", "step", "finite")
FORKING = threading.Lock()  # filelock, which `transformers` imports, refuses two forks at once
Row = dict[str, Any]  # class, group, verdicts by claim, failures; or why it was not built


def kinds(group: str) -> dict[str, str]:
    """The model types of a group, with the names of their classes."""
    from transformers.models.auto import modeling_auto as auto

    names = getattr(auto, GROUPS[group].mapping)
    return {kind: name if isinstance(name, str) else name[0] for kind, name in names.items()}


def build(group: str, kind: str) -> Any:
    """The model, the first of the small configurations that runs; a RuntimeError lists why none does."""
    import transformers

    maker = getattr(transformers, GROUPS[group].maker)
    reasons = []
    try:
        attempts = list(small_configs(transformers.CONFIG_MAPPING[kind]))
    except Exception as error:
        raise RuntimeError(f"no configuration: {first_line(error)}") from None
    for attempt in attempts:
        try:
            config = attempt()
            if group == "causal" and hasattr(config, "is_decoder"):
                config.is_decoder = True
            with torch.device("meta"):
                count = sum(weight.numel() for weight in maker.from_config(config).parameters())
            if count > LARGEST:
                raise ValueError(f"{count:,} parameters at the smallest size that is tried")
            torch.manual_seed(0)
            model = maker.from_config(config).float().eval()
            with torch.no_grad():
                GROUPS[group].probe(model)
            return model
        except Exception as error:
            reasons.append(first_line(error))
    raise RuntimeError(reasons[0])


def first_line(error: Exception) -> str:
    """The type of an error and the start of its message."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {lines[0].strip()[:140]}"


def judge(group: str, kind: str) -> Row:
    """The verdicts on one class."""
    from regard.prove.reduced import randomize_weights

    torch.set_num_threads(1)
    model = randomize_weights(build(group, kind))
    row: Row = {"group": group, "kind": kind, "class": type(model).__name__, "claims": {}, "failures": []}
    for part, certificate in certificates(group, model):
        for result in certificate.results:
            name = f"{part}{result.claim}"
            raised = result.verdict == "fails" and result.evidence.startswith("it raised")
            row["claims"][name] = "raised" if raised else result.verdict
            if result.verdict == "fails":
                row["failures"].append(f"{name}: {result.evidence}")
    return row


def _child(group: str, kind: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    try:
        pipe.send(judge(group, kind))
    except Exception as error:
        pipe.send({"group": group, "kind": kind, "reason": str(error) or type(error).__name__})


def judged(group: str, kind: str, name: str) -> Row:
    """``judge`` in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(group, kind, theirs), daemon=True)
    with FORKING:
        process.start()
    theirs.close()
    row: Row = {"group": group, "kind": kind, "reason": f"no result within {LIMIT:.0f} s"}
    try:
        if ours.poll(LIMIT):
            row = ours.recv()
    except EOFError:
        row["reason"] = "its process ended"
    process.kill()
    process.join()
    return {"class": name, **row}


def results(only: set[str], workers: int) -> Iterator[Row]:
    """All rows, in the order of the groups."""
    wanted = [(group, kind, name) for group in GROUPS for kind, name in kinds(group).items()]
    wanted = [one for one in wanted if not only or only & {one[1], one[2], one[0]}]
    with ThreadPoolExecutor(workers) as pool:
        for number, row in enumerate(pool.map(lambda one: judged(*one), wanted), 1):
            what = row.get("reason") or "; ".join(row["failures"]) or "sound"
            print(f"{number} of {len(wanted)}: {row['class']} ({row['group']}): {what[:160]}", file=sys.stderr)
            yield row


def markdown(rows: list[Row], version: str) -> str:
    """A table by group, and the classes that were not built with the reason."""
    marks = {"holds": "yes", "fails": "**no**", "not applicable": "", "raised": "raised"}
    judged_rows = [row for row in rows if "claims" in row]
    lines = [f"{len(judged_rows)} of {len(rows)} classes of `transformers` {version} were built and judged.", ""]
    for group in GROUPS:
        members = [row for row in judged_rows if row["group"] == group]
        columns = list(dict.fromkeys(name for row in members for name in row["claims"]))
        lines += [
            f"### {GROUPS[group].title}",
            "",
            f"| class | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for row in members:
            cells = [marks[row["claims"].get(name, "not applicable")] for name in columns]
            lines.append(f"| {row['class']} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["### Not built", "", "| class | reason |", "|---|---|"]
    lines += [
        f"| {row['class']} ({row['group']}) | {row['reason'].replace('|', '/')} |" for row in rows if "reason" in row
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="model types, classes or groups, separated by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)  # before the processes are forked
    rows = list(results({name for name in chosen.only.split(",") if name}, chosen.workers))
    if chosen.json:
        chosen.json.write_text(json.dumps({"transformers": transformers.__version__, "rows": rows}, indent=1))
    if chosen.markdown:
        chosen.markdown.write_text(markdown(rows, transformers.__version__))
    count = Counter("not built" if "reason" in row else "sound" if not row["failures"] else "fails" for row in rows)
    print(", ".join(f"{number} {what}" for what, number in count.items()))


if __name__ == "__main__":
    main()
