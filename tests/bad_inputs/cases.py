"""The table: each row is a mistake, and what the one sentence about it must name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bad_inputs.damage import (
    RUN,
    Change,
    checkpoints,
    damage_second_record,
    flip,
    folder,
    lose_manifest,
    remove,
    replace,
    truncate,
    unlisted,
    vanish,
    write,
)
from bad_inputs.limits import file_size, no_privilege
from bad_inputs.room import TEXT, TINY
from regard.runs.schema import SCHEMA

HERE = Path(__file__).parent
TRAIN = f"train {TINY} --train.steps 2 "
UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0"} | {
    "npm_config_registry": "http://127.0.0.1:9/",
    "PIP_NO_INDEX": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
}


class Case(NamedTuple):
    """One mistake."""

    command: str
    says: tuple[str, ...]
    change: Change | None = None  # what is done to the room first
    run: bool = False  # whether a trained run lies in runs/one
    env: dict[str, str] | None = None
    before: Callable[[], None] | None = None  # a limit of the process


def changed(*options: str) -> str:
    """`regard train` of the tiny experiment with these options in place of its own."""
    words, given = TRAIN.split(), dict(zip(options[::2], options[1::2], strict=True))
    kept = [word for i, word in enumerate(words) if word not in given and (i == 0 or words[i - 1] not in given)]
    return " ".join([*kept, *(f"{name} {value}" for name, value in given.items())])


#: Mistakes that are seen before torch is imported.
LIGHT = {
    "unknown command": Case("trian", ("'trian'", "train?")),
    "unknown option": Case("train --nam x", ("--nam", "--name?")),
    "unknown option, nothing near": Case("info --zzz", ("--zzz", "regard info --help")),
    "option without value": Case("train --name --json", ("--name", "no value")),
    "key without value": Case("train --model.width 3 --model.width", ("--model.width", "no value")),
    "switch with a value": Case("info --json=yes", ("--json", "switch")),
    "option twice": Case("train --name a --name b", ("--name", "twice", "'a'", "'b'")),
    "key twice": Case("train --model.width 8 --model.width=16", ("--model.width", "twice", "'8'", "'16'")),
    "seed is no number": Case("train --seed one", ("--seed", '"one"', "whole number")),
    "a word too many": Case("train shakespeare macbeth", ("'macbeth'", "RECIPE")),
    "a key for another command": Case("info --model.width 3", ("--model.width", "regard train")),
    "two budgets": Case("train --train.steps 5 --train.seconds 9", ("--train.steps and --train.seconds", "leave out")),
    "unknown recipe": Case("train shakespear", ("'shakespear'", "shakespeare?")),
    "unknown recipe to list": Case("recipes shakespear", ("'shakespear'", "shakespeare?")),
    "no such TOML": Case("train mine.toml", ("mine.toml", "cannot be read")),
    "bad TOML": Case("train mine.toml", ("mine.toml", "line 2"), write("mine.toml", "[model]\nwidth = = 3\n")),
    "TOML of bytes": Case("train mine.toml", ("mine.toml", "UTF-8"), write("mine.toml", b"width = \xff\n")),
    "name taken": Case(TRAIN + "--name one", ("runs/one", "--name", "regard resume"), run=True),
    "name taken by a file": Case(TRAIN + "--name one", ("runs/one", "file"), write("runs/one", "")),
    "name with a slash": Case(TRAIN + "--name ../one", ("'../one'", "letters")),
    "empty name": Case(TRAIN + "--name ''", ("''", "letters")),
    "runs is a file": Case(TRAIN + "--runs text.txt", ("text.txt", "file", "--runs")),
    "runs cannot be written": Case(
        TRAIN + "--runs there/runs", ("there", "--runs"), folder("there", 0o555), before=no_privilege
    ),
    "no run at all": Case("info", ("runs", "regard train")),
    "no such run": Case("info onee", ("runs/onee", "runs/one?"), run=True),
    "no such run to resume": Case("resume two", ("runs/two",)),
    "fewer steps than there are": Case("resume one --steps 3", ("runs/one", "4 steps", "more than 4"), run=True),
    "as many steps as there are": Case("resume one --steps 4", ("runs/one", "4 steps", "more than 4"), run=True),
    "a file for a run": Case("info text.txt", ("text.txt", "file")),
    "a folder that is no run": Case("info there", ("there", "config.toml"), folder("there")),
    "run of a newer version": Case(
        "info one", ("schema 99", "newer"), replace(f"{RUN}/config.toml", f"schema = {SCHEMA}", "schema = 99"), run=True
    ),
    "config damaged": Case("info one", ("config.toml", "line 1"), write(f"{RUN}/config.toml", "{"), run=True),
    "config without a model": Case(
        "info one", ("config.toml", "[model]"), unlisted(write(f"{RUN}/config.toml", f"schema = {SCHEMA}\n")), run=True
    ),
    "environment damaged": Case(
        "info one", ("environment.json", "damaged"), write(f"{RUN}/environment.json", "{"), run=True
    ),
    "metrics damaged": Case("info one", ("line 2", "metrics.jsonl"), damage_second_record, run=True),
    "metrics cannot be read": Case(
        "info one",
        ("metrics.jsonl", "Permission"),
        lambda room: (room / RUN / "metrics.jsonl").chmod(0),
        run=True,
        before=no_privilege,
    ),
    "rank is no number": Case(TRAIN, ("RANK", "'first'"), env={"RANK": "first"}),
    "generate: top-k is a word": Case("generate --top-k many", ("--top-k", '"many"', "whole number")),
    "generate: no tokens": Case("generate --tokens 0", ("--tokens", "at least 1")),
    "data: unknown action": Case("data gte", ('"gte"', "write `get`")),
    "data: unknown text": Case("data get playz", ("playz", "plays")),
    "data: which text": Case("data get", ("regard data get NAME",)),
}

#: Mistakes in the experiment, on the machine, or in a checkpoint: torch has to be asked.
HEAVY = {
    "option of the experiment": Case("train --steps 5", ("--steps", "--train.steps?")),
    "wrong key": Case(TRAIN + "--model.widht 16", ("--model.widht", "--model.width`?")),
    "wrong type": Case(changed("--model.width", "wide"), ("--model.width", '"wide"', "whole number")),
    "bad kind": Case(TRAIN + "--model.position rotaty", ("rotaty", "--model.position rotary")),
    "key of another kind": Case(TRAIN + "--train.optimizer adamw --train.optimizer.split true", ("split", "muon")),
    "unknown key of an optimizer": Case(TRAIN + "--train.optimizer.lrr 1", ("lrr", "--train.optimizer.lr`?")),
    "unknown schedule": Case(TRAIN + "--train.schedule cosin", ("cosin", "cosine")),
    "width and heads": Case(changed("--model.heads", "3"), ("width 16", "3 heads", "heads = 4")),
    "more heads than width": Case(changed("--model.heads", "1000000000000"), ("heads", "width of 16")),
    "key/value heads": Case(TRAIN + "--model.kv_heads 3", ("2 heads", "3 key/value heads", "kv_heads = 1")),
    "no layers": Case(changed("--model.layers", "0"), ("layers", "at least 1")),
    "negative width": Case(changed("--model.width", "-16"), ("width", "at least 1")),
    "not a number": Case(TRAIN + "--train.clip nan", ("--train.clip", "nan", "number")),
    "infinite cap": Case(TRAIN + "--model.cap inf", ("cap", "inf", "finite")),
    "negative rate": Case(TRAIN + "--train.optimizer.lr -1", ("lr", "-1", "at least 0")),
    "unknown backend": Case(TRAIN + "--model.backend fast", ("'fast'", "sdpa")),
    "seed too large": Case(TRAIN + "--seed 99999999999999999999", ("seed", "64 bits")),
    "budget of nothing": Case("train --train.seconds 0", ("seconds", "above 0")),
    "no log": Case(changed("--train.log_every", "0"), ("log_every", "at least 1")),
    "no batch": Case(changed("--data.batch", "0"), ("batch", "at least 1")),
    "all held out": Case(TRAIN + "--data.validation 1.5", ("validation", "less than 1")),
    "too little held out": Case(TRAIN + "--data.validation 0.0001", ("too few", "--data.validation")),
    "wrong key in TOML": Case(
        "train mine.toml", ("mine.toml", "train.stepps", "train.steps`?"), write("mine.toml", "[train]\nstepps = 3\n")
    ),
    "no such text": Case(changed("--data.path", "no.txt"), ("there is no file no.txt", "check the path")),
    "empty text": Case(changed("--data.path", "e.txt"), ("e.txt", "empty"), write("e.txt", "")),
    "no text": Case(changed("--data.path", "e.txt"), ("e.txt", "not text", "line 2"), write("e.txt", b"a\n\xff\n")),
    "folder without text": Case(changed("--data.path", "there"), ("there",), folder("there")),
    "context too long": Case(changed("--model.context", "5000"), ("5000", "--model.context")),
    "no network": Case("train", ("plays", "127.0.0.1", "--data.path"), env=UNREACHABLE),
    "no CUDA": Case(TRAIN + "--train.device cuda", ("'cuda'", "cpu"), env={"CUDA_VISIBLE_DEVICES": ""}),
    "no such device": Case(TRAIN + "--train.device gpu", ("'gpu'", "cpu")),
    "CPU dies of bfloat16": Case(
        TRAIN + "--train.device cpu --train.precision bfloat16",
        ("bfloat16", "signal 4", "--train.precision float32"),
        env={"PYTHONPATH": str(HERE / "cpu_without_bfloat16")},
    ),
    "model too wide": Case(
        changed("--model.width", "4000000") + " --train.device cpu", ("width 4,000,000", "iB", "--model.width")
    ),
    "too many layers": Case(changed("--model.layers", "10000000000"), ("layers", "--model.layers", "is the most")),
    "model beyond counting": Case(changed("--model.width", "40000000000000"), ("width", "--model.width")),
    "backend refuses": Case(TRAIN + "--model.backend flex --train.device cpu", ("'flex'", "--model.backend auto")),
    "no room for a run": Case(TRAIN, ("run folder in runs", "ulimit"), before=file_size(100)),
    "no room for the tokens": Case(
        TRAIN, ("cache", "REGARD_CACHE"), write("text.txt", TEXT * 20), before=file_size(12_000)
    ),
    "resume: no checkpoint whole": Case(
        "resume one", ("runs/one", "step-000004", "model.safetensors", "bytes"), checkpoints(truncate), run=True
    ),
    "resume: a bit flipped in all": Case("resume one", ("step-000004", "SHA-256"), checkpoints(flip), run=True),
    "resume: no manifests": Case("resume one", ("MANIFEST.json", "missing"), checkpoints(lose_manifest), run=True),
    "resume: another text": Case("resume one", ("SHA-256 differs",), write("text.txt", "another one " * 99), run=True),
    "resume: no text": Case("resume one", ("text.txt",), remove("text.txt"), run=True),
    "resume: another width": Case(
        "resume one",
        ("does not fit", "config.toml"),
        unlisted(replace(f"{RUN}/config.toml", "width = 16", "width = 32")),
        run=True,
    ),
    "resume: metrics damaged": Case("resume one", ("line 2", "metrics.jsonl"), damage_second_record, run=True),
    "resume: unknown key": Case(
        "resume one",
        ("config.toml", "widht", "width"),
        unlisted(replace(f"{RUN}/config.toml", "width", "widht")),
        run=True,
    ),
    "generate: no run": Case("generate", ("runs", "regard train")),
    "generate: no such run": Case("generate onee", ("runs/onee", "runs/one?"), run=True),
    "report: no such run": Case("report onee", ("runs/onee", "runs/one?"), run=True),
    "generate: unknown character": Case("generate one --prompt 'to €'", ("'€'",), run=True),
    "generate: negative temperature": Case("generate one --temperature -1", ("--temperature", "-1"), run=True),
    "generate: top-k 0": Case("generate one --top-k 0", ("--top-k", "at least 1"), run=True),
    "generate: no checkpoint yet": Case(
        "generate one", ("runs/one", "no checkpoint", "regard resume"), checkpoints(vanish), run=True
    ),
    "generate: no checkpoint whole": Case("generate one", ("step-000004", "SHA-256"), checkpoints(flip), run=True),
    "generate: tokenizer damaged": Case(
        "generate one", ("tokenizer.json",), write(f"{RUN}/tokenizer.json", '{"model": '), run=True
    ),
    "generate: another width": Case(
        "generate one",
        ("config.toml", "SHA-256", "MANIFEST.json"),
        replace(f"{RUN}/config.toml", "width = 16", "width = 32"),
        run=True,
    ),
    "generate: no CUDA": Case(
        "generate one --device cuda", ("'cuda'", "cpu"), run=True, env={"CUDA_VISIBLE_DEVICES": ""}
    ),
    "report: no folder to write to": Case("report one --out there/page.html", ("there", "--out"), run=True),
    "report: metrics damaged": Case("report one", ("line 2", "metrics.jsonl"), damage_second_record, run=True),
}
