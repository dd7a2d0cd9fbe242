"""The Transformer that translates an interface."""

from regard.data import BpeConfig, PairsConfig
from regard.models import TransformerConfig
from regard.nn.positions.position import RotaryConfig
from regard.tasks import TranslationConfig
from regard.train import Experiment, MuonConfig, TrainConfig, TrapezoidScheduleConfig


def recipe() -> Experiment:
    """A Transformer, 3 + 3 layers x 256, that translates Home Assistant's interface from English into French.

    regard train translate-transformer

    A quarter of an hour on 2 cores: BLEU 33.1 on integrations it never saw (`regard translate --test`).
    """
    return Experiment(
        model=TransformerConfig(
            context=64, layers=3, heads=4, width=256, dropout=0.2, attention_dropout=0.0, position=RotaryConfig()
        ),
        data=PairsConfig(tokenizer=BpeConfig(vocabulary=4096), batch=2048),
        task=TranslationConfig(smoothing=0.1),
        train=TrainConfig(
            steps=1200,
            optimizer=MuonConfig(),
            schedule=TrapezoidScheduleConfig(warmup=0.05, decay=0.7),
            evaluate_every=200,
            save_every=600,
        ),
    )
