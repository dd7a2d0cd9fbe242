"""Every model class of `transformers` that can be built small, tested with `regard prove`.

    python -m bench.gallery [--only NAME,NAME] [--json FILE] [--markdown FILE] [--workers 2] [--limit SECONDS]

Causal, masked, encoder-decoder and image classes, from their own configurations (`small_configs`), with random weights.
Each is tested in a process of its own with a time limit; a class that cannot be built says why. Rows are saved in the
JSON file as they are completed, and a second call with the same file tests only those that are missing.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from bench.gallery_adapters import GROUPS, certificates
from bench.small_configs import small_configs
from regard.prove import Certificate

LARGEST = 150_000_000  # parameters
LIMIT = 300.0  # seconds for one class
CLAIMS = ("future", "padding", "batching", "step", "finite")
FORKING = threading.Lock()  # filelock, which `transformers` imports, refuses two forks at once
#: Why some classes are not built, by model type.
REASONS = {
    "gemma3n": "needs timm",
    "timm_wrapper": "needs timm",
    "dinat": "needs natten",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"), "a draft model: needs keys and values of another"
    ),
    "voxtral_realtime": "needs audio beside the tokens",
    "imagegpt": "takes color tokens, not an image",
    "siglip2": "takes patches, not an image",
    "shieldgemma2": "takes a text beside the image",
}
Row = dict[str, Any]  # class, group, verdicts by claim, failures; or why it was not built


def kinds(group: str) -> dict[str, str]:
    """The model types of a group, with the names of their classes."""
    from transformers.models.auto import modeling_auto as auto

    names = getattr(auto, GROUPS[group].mapping)
    return {kind: name if isinstance(name, str) else name[0] for kind, name in names.items()}


def build(group: str, kind: str) -> Any:
    """The model, the first of the small configurations that runs; a RuntimeError says why none does."""
    import transformers

    model_class, reasons = getattr(transformers, kinds(group)[kind]), []
    try:
        attempts = list(small_configs(transformers.CONFIG_MAPPING[kind]))
    except Exception as error:
        raise RuntimeError(f"no configuration: {first_line(error)}") from None
    for attempt in attempts:
        try:
            config = own_config(model_class, attempt())
            if group == "causal" and hasattr(config, "is_decoder"):
                config.is_decoder = True
            with torch.device("meta"):
                count = sum(weight.numel() for weight in model_class._from_config(config).parameters())
            if count > LARGEST:
                raise ValueError(f"{count:,} parameters at the smallest size that is tried")
            torch.manual_seed(0)
            model = model_class._from_config(config).float().eval()
            with torch.no_grad():
                GROUPS[group].probe(model)
            return model
        except Exception as error:
            reasons.append(first_line(error))
    raise RuntimeError(reasons[0])


def own_config(model_class: Any, config: Any) -> Any:
    """The configuration that a class takes: the given one, or one inside it."""
    inside = (one for one in vars(config).values() if isinstance(one, model_class.config_class))
    return config if isinstance(config, model_class.config_class) else next(inside, config)


def first_line(error: Exception) -> str:
    """The type of an error and the start of its message."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {lines[0].strip()[:140]}"


def judge(group: str, kind: str) -> Row:
    """The verdicts on one class."""
    from regard.prove.reduced import randomize_weights

    torch.set_num_threads(1)
    model = randomize_weights(build(group, kind))
    if group == "seq2seq" and not model.config.is_encoder_decoder:  # a causal language model that reads audio features
        group = "causal"
    row: Row = {"group": group, "kind": kind, "class": type(model).__name__, "claims": {}, "failures": []}
    for part, certificate in certificates(group, model):
        add_verdicts(row, part, certificate)
    return row


def add_verdicts(row: Row, part: str, certificate: Certificate) -> Row:
    """Add the verdicts of a certificate to a row; ``part`` begins the names of the claims."""
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
        reason = REASONS.get(kind) or str(error) or type(error).__name__
        pipe.send({"group": group, "kind": kind, "reason": reason})


def judged(group: str, kind: str, name: str, limit: float = LIMIT) -> Row:
    """``judge`` in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(group, kind, theirs), daemon=True)
    with FORKING:
        process.start()
    theirs.close()
    row: Row = {"group": group, "kind": kind, "reason": f"no result within {limit:.0f} s"}
    try:
        if ours.poll(limit):
            row = ours.recv()
    except EOFError:
        row["reason"] = "its process ended"
    process.kill()
    process.join()
    return {"listed": group, "class": name, **row}


def wanted(only: set[str]) -> list[tuple[str, str, str]]:
    """Group, model type and class of all classes to test; one that is listed as causal is no encoder-decoder."""
    every = [(group, kind, name) for group in GROUPS for kind, name in kinds(group).items()]
    causal = {one[1:] for one in every if one[0] == "causal"}
    every = [one for one in every if one[0] != "seq2seq" or one[1:] not in causal]
    return [one for one in every if not only or only & set(one)]


def saved(path: Path | None, version: str) -> list[Row]:
    """The rows of a JSON file that this version of the library made, but for those that ran out of time."""
    known = json.loads(path.read_text()) if path and path.exists() else {}
    rows = known["rows"] if known.get("transformers") == version else []
    return [row for row in rows if not row.get("reason", "").startswith("no result within")]


def outcome(row: Row) -> str:
    """The worst that was found."""
    verdicts = row.get("claims", {}).values()
    worst = next((one for one in ("fails", "raised") if one in verdicts), "sound")
    return "not built" if "reason" in row else worst


def results(todo: list[tuple[str, str, str]], workers: int, limit: float) -> Iterator[Row]:
    """The rows, as they are completed."""
    with ThreadPoolExecutor(workers) as pool:
        for number, done in enumerate(as_completed([pool.submit(judged, *one, limit) for one in todo]), 1):
            row = done.result()
            what = row.get("reason") or "; ".join(row["failures"]) or "sound"
            print(f"{number} of {len(todo)}: {row['class']} ({row['group']}): {what[:160]}", file=sys.stderr)
            yield row


def markdown(rows: list[Row], version: str) -> str:
    """All tables, with a count."""
    built = sum("claims" in row for row in rows)
    lines = [f"{built} of {len(rows)} classes of `transformers` {version} were built and judged.", ""]
    lines += table(rows, {name: group.title for name, group in GROUPS.items()})
    return "\n".join(lines) + "\n"


def table(rows: list[Row], titles: dict[str, str]) -> list[str]:
    """The lines of a table by group, and the classes that were not built with the reason."""
    marks = {"holds": "yes", "fails": "**no**", "not applicable": "", "raised": "raised"}
    lines: list[str] = []
    for group, title in titles.items():
        members = [row for row in rows if row["group"] == group and "claims" in row]
        columns = list(dict.fromkeys(name for row in members for name in row["claims"]))
        lines += [f"### {title}", "", f"| class | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for row in members:
            cells = [marks[row["claims"].get(name, "not applicable")] for name in columns]
            lines.append(f"| {row['class']} | {' | '.join(cells)} |")
        lines.append("")
    missing = [row for row in rows if "reason" in row]
    lines += ["### Not built", "", "| class | reason |", "|---|---|"] if missing else []
    return lines + [f"| {row['class']} ({row['group']}) | {row['reason'].replace('|', '/')} |" for row in missing]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="model types, classes or groups, separated by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one class")
    chosen = parser.parse_args()
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)  # before the processes are forked
    rows = saved(chosen.json, transformers.__version__)
    order = wanted({name for name in chosen.only.split(",") if name})
    known = {(row["listed"], row["kind"]) for row in rows}
    for row in results([one for one in order if one[:2] not in known], chosen.workers, chosen.limit):
        rows.append(row)
        if chosen.json:
            chosen.json.write_text(json.dumps({"transformers": transformers.__version__, "rows": rows}, indent=1))
    rows.sort(key=lambda row: (list(GROUPS).index(row["group"]), row["class"].lower()))
    if chosen.markdown:
        chosen.markdown.write_text(markdown(rows, transformers.__version__))
    print(", ".join(f"{number} {what}" for what, number in Counter(map(outcome, rows)).items()))


if __name__ == "__main__":
    main()
