"""Multi30k, English to German: `python -m bench.multi30k FOLDER --model transformer`.

FOLDER holds train, val and test_2016_flickr as .en and .de files (task 1 of the WMT16 multimodal shared task; the
captions are not part of this project). As in published work all text is in small letters. Beam 5; the translations are
kept beside the run, and BLEU and chrF are printed where sacrebleu is there.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import override, to_toml
from regard.data import BpeConfig, PairsConfig
from regard.errors import UserError
from regard.generate.translation import load_translation_model
from regard.models.device import find_device
from regard.recipes import get
from regard.runs import Run, environment
from regard.train import Experiment, train
from regard.train.live import LiveLine

#: What differs from the recipes of these names, which are made for two cores and half as many pairs.
SETTINGS = {
    "transformer": {
        "--model.layers": "4",
        "--model.width": "256",
        "--model.dropout": "0.4",
        "--data.batch": "4096",
        "--train.steps": "4000",
    },
    "bahdanau": {
        "--model.width": "512",
        "--model.embedding": "256",
        "--model.dropout": "0.5",
        "--data.batch": "4096",
        "--train.steps": "3000",
        "--train.precision": "float32",
    },
}


def experiment(model: str, folder: Path, seed: int, given: list[str]) -> Experiment:
    """The recipe on these files."""
    recipe = get(f"translate-{model}")
    data = PairsConfig(
        path=str(folder / "train"),
        validation_path=str(folder / "val"),
        test_path=str(folder / "test_2016_flickr"),
        languages="en-de",
        tokenizer=BpeConfig(vocabulary=8000),
        lower=True,
        near=100.0,  # a published test set stays whole
    )
    settings = [part for pair in SETTINGS[model].items() for part in pair]
    return override(override(replace(recipe, data=data, seed=seed), settings), given).checked()


def main() -> None:
    """The command line; what it does not know sets keys of the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=list(SETTINGS), default="transformer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    chosen, given = parser.parse_known_args()
    wanted = experiment(chosen.model, chosen.folder, chosen.seed, given)
    run = Run.create(chosen.runs, None, to_toml(wanted), environment(), prefix=f"multi30k-{chosen.model}")
    began = time.perf_counter()
    train(wanted, run, [LiveLine()])
    spent = time.perf_counter() - began
    device = find_device(wanted.train.device)
    trained = load_translation_model(run, device)
    data: Any = trained.data()
    texts = [one.text for one in trained.translator().translate(data.test.sources)]
    (run.path / "translations.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (run.path / "references.txt").write_text("\n".join(data.test.targets) + "\n", encoding="utf-8")
    print(f"{run.path}: {spent:.0f} s of training on {device}, seed {chosen.seed}, translations.txt")
    try:
        from regard.measure import score

        print("\n".join(map(str, score(texts, data.test.targets))))
    except UserError as problem:
        print(problem)


if __name__ == "__main__":
    main()
