"""GPT-2 small on your own text."""

from regard.data import BpeConfig, TextConfig
from regard.models.presets import PRESETS
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """GPT-2 small (124M parameters) from scratch on a text of your own, for one GPU.

    regard train gpt2-small --data.path 'books/*.txt'

    GPT-2's architecture and its vocabulary size, with a byte-level BPE learned from your text. A step takes half a
    million tokens in 16 parts; one H200 trains on about 500,000 tokens/s, so 2,000 steps (a billion tokens) take some
    35 minutes. It needs a gigabyte of text or more: with less, use fewer --train.steps and a smaller
    --data.tokenizer.vocabulary.
    """
    return Experiment(
        model=PRESETS["gpt2"],
        data=TextConfig(batch=32, tokenizer=BpeConfig(vocabulary=50_257)),
        train=TrainConfig(
            steps=2000,
            accumulate=16,
            optimizer=AdamWConfig(lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
            schedule=CosineScheduleConfig(warmup=0.05, final=0.1),
            evaluate_every=250,
            save_every=250,
        ),
    )
