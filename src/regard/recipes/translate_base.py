"""The Transformer base model with a textbook's defaults."""

from dataclasses import replace

from regard.data import BpeConfig, PairsConfig
from regard.models import TransformerConfig
from regard.models.presets import BASE
from regard.nn.feedforward import ReLUConfig
from regard.recipes import translate_bahdanau
from regard.train import AdamWConfig, Experiment, NoamScheduleConfig


def recipe() -> Experiment:
    """The Transformer base model, 6 + 6 layers x 512, with the notes' starting values for every hyperparameter.

    regard train translate-base

    8 heads, feed-forward width 2,048, dropout 0.1 everywhere, AdamW with learning rate 1e-4, warm-up over 4,000 steps
    and then the inverse square root of the step, 32 sentences a step on average. English into French
    on Home Assistant's interface. For a GPU: a CPU takes hours, and `translate-transformer` a quarter of an hour.
    """
    base = translate_bahdanau.recipe()
    model: TransformerConfig = replace(BASE, context=64, attention_dropout=None, feedforward=ReLUConfig(dropout=0.1))
    data = PairsConfig(tokenizer=BpeConfig(vocabulary=4096), batch=416)  # tokens: 32 sentences on average
    optimizer, schedule = AdamWConfig(lr=1e-4), NoamScheduleConfig(warmup=4000)
    train = replace(
        base.train, steps=20_000, optimizer=optimizer, schedule=schedule, evaluate_every=1000, save_every=2000
    )
    return replace(base, model=model, data=data, train=train)
