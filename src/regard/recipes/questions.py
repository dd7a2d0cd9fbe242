"""A pretrained encoder that learns to answer questions."""

from dataclasses import replace

from regard.data import AnswersConfig
from regard.recipes import tagging
from regard.tasks import AnsweringConfig
from regard.train import Experiment


def recipe() -> Experiment:
    """MiniLM, fine-tuned to answer generated questions by a part of a passage, measured by exact match and F1.

    regard train questions

    Training ends early when the F1 stays the same. Your own questions, in the SQuAD format: --data.path FILE
    """
    base = tagging.recipe()
    train = replace(base.train, seconds=None, epochs=1.0, evaluate_every=100, patience=3)
    data = AnswersConfig(tokens=256, validation=0.02, batch=2048)
    return replace(base, data=data, task=AnsweringConfig(), train=train)
