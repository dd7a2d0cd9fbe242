"""Runs in which nothing is wrong: every recipe with three seeds, made short enough for one CPU core.

The list was fixed before anything that looks for faults was written: on none of these may it raise an alarm. Each line
is the arguments of ``regard train``. Optimizer, rates, schedule, norms, positions, tokenizers and tasks are the
recipe's own; fewer steps, smaller batches and less text, and of the models for GPUs smaller sizes, make them short.
"""

from __future__ import annotations

SEEDS = (1, 2, 3)
SHORT = "--train.device cpu --train.log_every 1 --train.save_every none"
PLAYS = "--data.limit 400000 --data.validation 0.02"
PAIRS = "--train.steps 60 --train.evaluate_every 30 --data.batch 512 --model.width 64 --data.tokenizer.vocabulary 1024"

IMAGES = "--train.seconds none --train.steps 60 --train.evaluate_every 30 --data.batch 32"

#: Of each recipe, what makes it short.
OVERRIDES: dict[str, str] = {
    "cifar10": f"{IMAGES} --model.layers 2 --data.validation 0.01",
    "digits": "--train.steps 150 --train.evaluate_every 50",
    "fashion-mnist": f"{IMAGES} --data.validation 0.01",
    "mnist": f"{IMAGES} --data.validation 0.01",
    "enwik8": f"--data.source plays {PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 "
    "--model.context 128 --model.layers 4 --model.width 128 --model.buckets 16384",
    "gpt2-small": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --train.accumulate 2 "
    "--data.tokenizer.vocabulary 512 --model.context 64 --model.layers 4 --model.heads 4 --model.width 128",
    "shakespeare": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-conv": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "masked-plays": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64",
    "shakespeare-encoder": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64",
    "shakespeare-fast": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-gpu": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64 "
    "--model.width 128",
    "shakespeare-gru": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64",
    "shakespeare-lstm": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64",
    "shakespeare-moe": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-rnn": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 8 --model.context 64",
    "shakespeare-small": f"{PLAYS} --train.steps 150 --train.evaluate_every 50",
    "translate-base": f"{PAIRS} --model.layers 2 --train.schedule.warmup 20",
    "translate-bahdanau": f"{PAIRS} --model.embedding 64",
    "translate-fixed": f"{PAIRS} --model.embedding 64",
    "translate-luong": f"{PAIRS} --model.embedding 64",
    "translate-transformer": PAIRS,
    # The recipes of other modalities came later; the list was extended by them without a look at their findings.
    "bikes": "--train.steps 60 --train.evaluate_every 30 --data.limit 8000",
    "detect-digits": "--train.steps 60 --train.evaluate_every 30 --data.scenes 1000",
    "dutch-speech": "--train.steps 60 --train.evaluate_every 30 --model.width 64",
    "emoji-caption": "--train.seconds none --train.steps 60 --train.evaluate_every 30 --data.batch 40",
    "emoji-match": "--train.seconds none --train.steps 60 --train.evaluate_every 30 --data.batch 32",
    "etth1": "--train.steps 60 --train.evaluate_every 30",
    "karate": "--train.steps 100 --train.evaluate_every 50",
    "molecules": "--train.steps 60 --train.evaluate_every 30 --data.limit 400000 --data.validation 0.02",
    "pathfinder": "--train.steps 100 --train.evaluate_every 50",
    "moving-digits": "--train.steps 60 --train.evaluate_every 30 --data.clips 1000",
    "pubmed": "--train.steps 60 --train.evaluate_every 30",
    "scene-captions": "--train.steps 60 --train.evaluate_every 30 --data.scenes 1000",
    "shakespeare-hybrid": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-mamba": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-mingru": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "shakespeare-ssm": f"{PLAYS} --train.steps 60 --train.evaluate_every 30 --data.batch 4 --model.context 128",
    "scenes": "--train.steps 60 --train.evaluate_every 30 --data.scenes 1000 --data.batch 32",
    "solubility": "--train.steps 60 --train.evaluate_every 30",
    "spoken-language": "--train.steps 60 --train.evaluate_every 30 --model.width 64",
    "text-to-image": "--train.steps 60 --train.evaluate_every 30 --data.scenes 1000",
    "toy-copy": "--train.steps 60 --train.evaluate_every 30",
    "umls": "--train.steps 60 --train.evaluate_every 30",
    "vowels": "--train.steps 100 --train.evaluate_every 50",
}

HEALTHY: list[str] = [f"{name} --seed {seed} {SHORT} {these}" for name, these in OVERRIDES.items() for seed in SEEDS]
