"""Fine-tuning and pretraining of encoders in 15 minutes each, beside simple baselines (docs/results/finetuning.md).

    python -m bench.finetune baselines                       TF-IDF + logistic regression, most frequent tag, unigrams
    python -m bench.finetune train NAME --out FILE           one training: sentiment, sentiment-cls, sentiment-scratch,
                                                             sentiment-lora, tagging, tagging-scratch or masked
The time of a training is `--seconds` (900) with its preparation; the test afterwards is not counted. scikit-learn
is needed for the first baseline only.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.config import override
from regard.data import ClassesConfig, LabeledData, TagsConfig, TextData
from regard.models.device import find_device
from regard.recipes import recipe
from regard.runs import Run
from regard.tasks import Measured
from regard.train import fit
from regard.train.evaluate import measure, score
from regard.train.precision import Precision
from regard.train.pretrained import build_data

SCRATCH = ("--init=none", "--data.tokenizer.vocabulary=8192", "--train.adapt=full")
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sentiment": ("sentiment", ()),
    "sentiment-cls": ("sentiment", ("--task.pool=cls",)),
    "sentiment-scratch": ("sentiment", (*SCRATCH, "--train.optimizer.lr=1e-3")),
    "sentiment-lora": ("sentiment", ("--train.adapt=lora", "--train.optimizer.lr=1e-3")),
    "tagging": ("tagging", ()),
    "tagging-scratch": (
        "tagging",
        (*SCRATCH, "--model.layers=3", "--model.width=256", "--model.heads=8", "--train.optimizer.lr=1e-3"),
    ),
    "masked": ("masked-plays", ()),
}


def train(name: str, seconds: float, precision: str, extra: list[str], folder: Path) -> dict[str, Any]:
    """One training and its test."""
    base, options = TRAININGS[name]
    experiment = override(recipe(base), [*options, f"--train.precision={precision}", *extra])
    experiment = replace(experiment, train=replace(experiment.train, seconds=seconds, steps=None, epochs=None))
    began = time.perf_counter()
    result = fit(experiment, name, runs=folder)
    wall = time.perf_counter() - began
    run = Run.open(result.path)
    found = {
        "name": name,
        "options": [base, *options, *extra],
        "precision": precision,
        "seconds": seconds,
        "wall": round(wall, 1),
        "steps": result.step,
        "validation_loss": result.validation_loss,
        "threads": torch.get_num_threads(),
        "cpu": cpu(),
        "torch": torch.__version__,
    }
    return found | tested(run)


def tested(run: Run) -> dict[str, Any]:
    """The measures of the test part; without labels, the loss beside the unigram entropy of the validation part."""
    from regard.generate.load import load_model
    from regard.train import Experiment

    experiment = run.load(Experiment)
    data, task, loaded = build_data(experiment, run), experiment.task.build(), load_model(run)
    precision = Precision("auto", find_device("cpu"))
    if isinstance(data, LabeledData) and isinstance(task, Measured):
        batches = data.test_batches(max(experiment.data.batch, data.smallest_batch))
        loss, measures = measure(loaded.model, task, batches, precision)
        per_epoch = data.epoch(experiment.data.batch)
        return {"test": measures, "test_loss": loss.loss, "test_examples": data.test_count, "epoch_steps": per_epoch}
    assert isinstance(data, TextData)
    loss = score(loaded.model, task, data.validation_batches(experiment.data.batch), precision)
    return {"masked_loss": loss.loss, "targets": loss.targets, "unigram": unigram_loss(data)}


def unigram_loss(data: TextData) -> float:
    """Nats per token of the validation part under the frequencies of the training part, each count plus one."""
    counts = []
    for part in ("train", "validation"):
        count = torch.zeros(data.tokenizer.size, dtype=torch.float64)
        for batch in data.sliding_batches(part, 64, data.context):
            count += batch.targets[batch.targets >= 0].bincount(minlength=data.tokenizer.size)
        counts.append(count)
    train, held_out = counts
    shares = (train + 1) / (train + 1).sum()
    return float(-(held_out * shares.log()).sum() / held_out.sum())


def tf_idf(config: ClassesConfig) -> dict[str, float]:
    """TF-IDF of words and logistic regression, with scikit-learn's defaults, and with pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    training, _, test = config.parts()
    found = {}
    for name, ngrams, strength in (("words", (1, 1), 1.0), ("words and pairs", (1, 2), 10.0)):
        vectorizer = TfidfVectorizer(ngram_range=ngrams, min_df=1 if ngrams == (1, 1) else 2)
        model = LogisticRegression(C=strength, max_iter=1000)
        model.fit(vectorizer.fit_transform([one.text for one in training]), [one.label for one in training])
        found[name] = float(model.score(vectorizer.transform([one.text for one in test]), [one.label for one in test]))
    return found


def most_frequent_tag(config: TagsConfig) -> float:
    """The share of the test part's words whose tag is the one that the word has most often in the training part."""
    training, _, test = config.parts()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in training:
        for word, tag in zip(one.words, one.tags, strict=True):
            counts[word][tag] += 1
    overall = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    right = [best.get(word, overall) == tag for one in test for word, tag in zip(one.words, one.tags, strict=True)]
    return sum(right) / len(right)


def baselines() -> dict[str, Any]:
    """The three baselines."""
    sentiment, tagging = recipe("sentiment").data, recipe("tagging").data
    assert isinstance(sentiment, ClassesConfig)
    assert isinstance(tagging, TagsConfig)
    return {"most_frequent_tag": most_frequent_tag(tagging), "tf_idf": tf_idf(sentiment)}


def cpu() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["baselines", "train"])
    parser.add_argument("name", nargs="?", choices=list(TRAININGS))
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], help="a further option of `regard train`")
    parser.add_argument("--runs", type=Path, help="the folder of runs; default: a temporary one")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.runs or Path(temporary)
        if given.action == "baselines":
            found = baselines()
        else:
            found = train(given.name, given.seconds, given.precision, given.set, folder)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
