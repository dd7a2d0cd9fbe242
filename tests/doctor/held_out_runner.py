"""Runs a held-out list: faults and healthy runs of a folder, with the doctor or without it.

Each case is a process of its own: `regard train --doctor` with the fault in place, then `regard doctor --json`. The
answers are kept in FOLDER/NAME.json; the table compares them with what was expected. Whether a finding names the fault
is judged by a reader, and results.md of each list has that judgement.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from held_out_cases import Case

PLAIN, SOUND = ".plain", ".sound"  # the endings of runs without the doctor


def main(faults: Sequence[Case], healthy: Sequence[Case], folder: Path, about: str | None) -> int:
    """Run the chosen cases of the list in ``folder``, and print what was found."""
    cases = {case.name: case for case in (*faults, *healthy)}
    reader = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("names", nargs="*", metavar="NAME")
    reader.add_argument("--out", type=Path, default=Path(folder.name.replace("_", "-")))
    reader.add_argument("--faults", action="store_true")
    reader.add_argument("--healthy", action="store_true")
    reader.add_argument("--effects", action="store_true")
    reader.add_argument("--child", choices=("doctor", PLAIN, SOUND), help=argparse.SUPPRESS)
    options = reader.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    if options.child:
        return child(cases[options.names[0]], out, options.child)
    some = options.faults or options.effects, options.healthy
    chosen = [case for part, take in zip((faults, healthy), some, strict=True) if take for case in part]
    chosen = [cases[name] for name in options.names] or chosen or list(cases.values())
    for case in chosen:
        with_sound = (PLAIN, SOUND) if case.inject or case.sound else (PLAIN,)
        for kind in with_sound if options.effects else ("doctor",):
            run_child(folder, case, out, kind)
        print(effect(case, out) if options.effects else told(case, out), flush=True)
    return 0


def run_child(folder: Path, case: Case, out: Path, kind: str) -> None:
    """One run in a process of its own, so that no fault stays behind."""
    command = [sys.executable, str(folder), case.name, "--out", str(out), "--child", kind]
    with open(out / f"{case.name}.{kind.strip('.')}.log", "w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, env=os.environ)


def child(case: Case, out: Path, kind: str) -> int:
    """Train, with the doctor or without it, and write what it says."""
    doctor, name = kind == "doctor", case.name if kind == "doctor" else f"{case.name}{kind}"
    folder = out / f"{case.name}-files"
    folder.mkdir(exist_ok=True)
    arguments = case.sound if kind == SOUND and case.sound else case.arguments
    train = [*once(arguments(folder)), f"--name={name}", f"--runs={out}", *(["--doctor"] if doctor else [])]
    began = time.perf_counter()
    codes: dict[str, Any] = {}
    if case.before is not None and not (out / base(case) / "config.toml").exists():
        call("train", *once(case.before(folder)), f"--name={base(case)}", f"--runs={out}")
    inject = (lambda: None) if case.inject is None or kind == SOUND else case.inject
    if case.resume is None:
        inject()
    codes["train"] = call("train", *train)[0]
    if case.resume is not None:
        inject()
        codes["resume"] = call("resume", str(out / name), f"--steps={case.resume}", *(["--doctor"] if doctor else []))[
            0
        ]
    seconds = time.perf_counter() - began
    answer: Any = None
    if doctor:
        codes["doctor"], text = call("doctor", str(out / name), "--json")
        with contextlib.suppress(ValueError):
            answer = json.loads(text)
    findings = out / name / "findings.jsonl"
    live = [json.loads(line) for line in findings.read_text().splitlines()] if findings.exists() else []
    record = {"case": case.name, "codes": codes, "seconds": round(seconds, 1), "doctor": answer, "live": live}
    record["losses"] = losses(out / name)
    (out / f"{name}.json").write_text(json.dumps(record, indent=1))
    return 0


def base(case: Case) -> str:
    """The name of the run that a case starts from."""
    return f"{case.name}-base"


def once(arguments: Any) -> list[str]:
    """The last value of each option."""
    recipe, *options = arguments
    return [recipe, *{option.partition("=")[0]: option for option in options}.values()]


def call(*arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it printed."""
    from regard.cli import main as regard

    print("$ regard", *arguments, flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = regard(list(arguments))
    print(printed.getvalue(), f"exit code {code}", flush=True)
    return code, printed.getvalue()


def losses(run: Path) -> dict[str, Any]:
    """First and last losses and the measures of the last evaluation."""
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    trained = [record["loss"] for record in records if "loss" in record]
    measured = [record for record in records if "validation_loss" in record]
    last = {name: value for name, value in (measured[-1] if measured else {}).items() if name.startswith("validation")}
    return {"first": trained[:1], "last": trained[-1:], "curve": trained[::5], **last}


def effect(case: Case, out: Path) -> str:
    """The losses of the faulty and of the sound run."""
    lines = [case.name]
    for kind in (PLAIN, SOUND):
        path = out / f"{case.name}{kind}.json"
        if kind == SOUND and not (case.inject or case.sound):
            continue
        record = json.loads(path.read_text()) if path.exists() else {"losses": "no result", "seconds": 0}
        found = record["losses"]
        shown = {k: v for k, v in found.items() if k != "curve"} if isinstance(found, dict) else found
        lines.append(f"  {kind[1:]:6} {record['seconds']:5} s  {shown}")
    return "\n".join(lines)


def told(case: Case, out: Path) -> str:
    """What the doctor said about a case."""
    path = out / f"{case.name}.json"
    if not path.exists():
        return f"{case.name}: no result; see {case.name}.doctor.log"
    record = json.loads(path.read_text())
    return f"{case.name} {record['codes']} {record['seconds']} s\n  {json.dumps(record['doctor'] or record['live'])}"
