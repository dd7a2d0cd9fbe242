"""A published model, tuned to answer as in a file of conversations."""

from regard.data import ChatConfig
from regard.models import GPTConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig
from regard.train.adapt import LoRAConfig


def recipe() -> Experiment:
    """SmolLM2 with LoRA adapters, tuned on the answers of your conversations.

    regard train chat --data.path chats.jsonl

    Then: regard chat RUN. Another model: --init RUN. All parameters: --train.adapt full --train.optimizer.lr 1e-5.
    """
    return Experiment(
        init="smollm2",
        model=GPTConfig(),
        data=ChatConfig(),
        train=TrainConfig(
            epochs=3,
            optimizer=AdamWConfig(lr=2e-4, betas=(0.9, 0.999), weight_decay=0.0),
            schedule=LinearScheduleConfig(warmup=0.03),
            adapt=LoRAConfig(rank=16, alpha=32),
            evaluate_every=50,
        ),
    )
