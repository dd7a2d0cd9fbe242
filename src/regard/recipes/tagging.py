"""A pretrained encoder that learns to tag words with their part of speech."""

from regard.data import TagsConfig
from regard.recipes.sentiment import MODEL, TRAIN
from regard.tasks import TaggingConfig
from regard.train import Experiment


def recipe() -> Experiment:
    """MiniLM, fine-tuned for a quarter of an hour to tag the words of the Brown corpus with their part of speech.

    regard train tagging

    Your own sentences, in the CoNLL format: --data.path FILE
    """
    return Experiment(
        init="minilm",
        model=MODEL,
        data=TagsConfig(validation=0.01, test=0.05, batch=1024),
        task=TaggingConfig(),
        train=TRAIN,
    )
