"""Record what healthy runs look like: python -m bench.reference [RECIPE ...]

Trains every recipe in the short form of tests/doctor/healthy_runs.py and at half its width, and writes loss, gradient
norm and size of the updates at a few steps to src/regard/doctor/reference.json, with which the doctor compares runs.
Recipes that are named are recorded again, the others stay as they are. About ten minutes on one core.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from regard.commands.train import read_experiment
from regard.config import dump, override, to_toml
from regard.doctor import Doctor
from regard.doctor.reference import PATH, STEPS, description, loss_scale
from regard.runs import Run
from regard.train import Experiment, train

TABLES = Path(__file__).parent.parent / "tests" / "doctor"
SEED = 11  # none of the seeds with which the doctor is tested


def record(name: str, experiment: Experiment, folder: Path) -> dict[str, object]:
    """One row of the file."""
    doctor = Doctor(out=io.StringIO())
    train(experiment, Run.create(folder, None, to_toml(experiment), {}), [doctor])
    history, scale = doctor.history, loss_scale(doctor.experiment)
    steps = [step for step in STEPS if step <= len(history.steps)]
    around = {step: history.steps[max(0, step - 1 - step // 5) : step + step // 5] for step in steps}
    return {
        "recipe": name,
        **description(doctor.experiment),
        "parameters": doctor.parameters,
        "steps": steps,
        "loss": [round(statistics.median(s.loss for s in around[k]) / scale, 4) for k in steps],
        "norm": [round(statistics.median(s.norm for s in around[k]), 4) for k in steps],
        "update": round(statistics.median(history.updates), 5) if history.updates else None,
    }


def main(folder: Path) -> None:
    """Record the recipes and write the file."""
    from healthy_runs import OVERRIDES, SHORT

    rows = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else []
    for name in sys.argv[1:] or OVERRIDES:
        rows = [row for row in rows if row["recipe"] != name]
        options = [*SHORT.split(), *OVERRIDES[name].split()]
        experiment = read_experiment(name, options, SEED)
        width = dump(experiment)["model"].get("width")
        for size in (None,) if width is None else (width // 2, width):
            sized = experiment if size is None else override(experiment, ["--model.width", str(size)])
            row = record(name, sized, folder)
            rows.append(row)
            print(name, size, row["loss"], row["norm"], row["update"], flush=True)
        rows.sort(key=lambda row: (row["recipe"], row["parameters"]))
        lines = ",\n".join(json.dumps(row) for row in rows)
        PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(TABLES))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
