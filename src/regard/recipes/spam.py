"""A pretrained encoder that learns to recognize spam, with a textbook's values for fine-tuning."""

from dataclasses import replace

from regard.data import ClassesConfig
from regard.recipes.sentiment import MODEL, TRAIN
from regard.tasks import ClassificationConfig
from regard.train import AdamWConfig, Experiment


def recipe() -> Experiment:
    """MiniLM, fine-tuned to recognize spam with the notes' starting values: learning rate 2e-5, three epochs.

    regard train spam

    Spam is a third of the mails, so its class counts more; training ends early when the accuracy stays the same.
    """
    optimizer = AdamWConfig(lr=2e-5, betas=(0.9, 0.999), weight_decay=0.01)
    return Experiment(
        init="minilm",
        model=MODEL,
        data=ClassesConfig(source="spam", tokens=128, batch=2048),
        task=ClassificationConfig(balanced=True),
        train=replace(TRAIN, seconds=None, epochs=3.0, optimizer=optimizer, evaluate_every=100, patience=5),
    )
