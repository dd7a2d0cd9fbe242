"""Small experiments of every kind that the page displays differently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regard.attention import WindowConfig
from regard.data import BpeConfig, PairsConfig, TextConfig
from regard.models import BahdanauConfig, GPTConfig, Seq2SeqConfig, TransformerConfig
from regard.tasks import TranslationConfig
from regard.train import AdamWConfig, ConstantScheduleConfig, Experiment, TrainConfig

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZIFFERN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def spell(number: int, words: list[str]) -> str:
    return " ".join(words[int(digit)] for digit in str(number))


MODEL = GPTConfig(context=64, layers=2, heads=4, width=32, zero_init=False)


def language(folder: Path, model: GPTConfig = MODEL) -> Experiment:
    """Return a language model experiment on numbers in words."""
    (folder / "text.txt").write_text("\n".join(spell(n * n * 7919, DIGITS) for n in range(1, 700)), encoding="utf-8")
    times = TrainConfig(
        steps=40, optimizer=AdamWConfig(lr=1e-2), log_every=2, evaluate_every=10, save_every=20, device="cpu"
    )
    return Experiment(model, TextConfig(path=str(folder / "text.txt"), batch=4, validation=0.2), train=times, seed=7)


def translation(folder: Path) -> Experiment:
    """Return a translation experiment from English to German digits."""
    rows = [f"{spell(n, DIGITS)}\t{spell(n, ZIFFERN)}\n" for n in (k * k * 7919 % 100_003 for k in range(1, 500))]
    (folder / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    data = PairsConfig(
        path=str(folder / "pairs.tsv"), languages="en-de", tokenizer=BpeConfig(vocabulary=320), near=100,
        validation=0.1, test=0.1, batch=256,
    )  # fmt: skip
    times = TrainConfig(
        steps=150,
        optimizer=AdamWConfig(lr=1e-2),
        schedule=ConstantScheduleConfig(),
        evaluate_every=150,
        save_every=150,
        device="cpu",
    )
    model = TransformerConfig(context=32, layers=2, heads=2, width=32, dropout=0.0)
    return Experiment(model, data, TranslationConfig(), times, seed=3)


def experiments(folder: Path) -> dict[str, Experiment]:
    """Return the experiments by run name; the learning rate of `wild` is far too high."""
    lm, pairs = language(folder), translation(folder)
    bpe = BpeConfig(vocabulary=300)
    wild = replace(lm.train, optimizer=AdamWConfig(lr=3.0), schedule=ConstantScheduleConfig(), clip=None)
    return {
        "plain": lm,
        "bpe": replace(lm, data=TextConfig(path=str(folder / "text.txt"), batch=4, validation=0.2, tokenizer=bpe)),
        "wide": language(folder, replace(MODEL, width=48)),
        "wild": replace(lm, train=wild),
        "windowed": language(folder, replace(MODEL, attention=WindowConfig(size=6, sinks=1))),
        "transformer": pairs,
        "bahdanau": replace(
            pairs, model=Seq2SeqConfig(context=32, width=32, embedding=16, dropout=0.0, attention=BahdanauConfig())
        ),
    }
