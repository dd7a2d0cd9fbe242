"""A chat model that learns which of two answers people prefer."""

from regard.data import PreferenceConfig
from regard.models import GPTConfig
from regard.tasks import PreferenceTaskConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig
from regard.train.adapt import LoRAConfig


def recipe() -> Experiment:
    """SmolLM2 with LoRA adapters, tuned by direct preference optimization (DPO).

    regard train preferences --data.path preferences.jsonl

    Each line has prompt, chosen and rejected. After supervised fine-tuning: --init RUN.
    """
    return Experiment(
        init="smollm2",
        model=GPTConfig(),
        data=PreferenceConfig(),
        task=PreferenceTaskConfig(),
        train=TrainConfig(
            epochs=1,
            optimizer=AdamWConfig(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.0),
            schedule=LinearScheduleConfig(warmup=0.1),
            adapt=LoRAConfig(rank=16, alpha=32),
            evaluate_every=50,
        ),
    )
