"""A pretrained encoder that learns to tag words with their part of speech."""

from dataclasses import replace

from regard.data import TagsConfig
from regard.recipes import sentiment
from regard.tasks import TaggingConfig
from regard.train import AdamWConfig, Experiment


def recipe() -> Experiment:
    """MiniLM, fine-tuned for a quarter of an hour to tag the words of the Brown corpus with their part of speech.

    regard train tagging

    Your own sentences, in the CoNLL format: --data.path FILE
    """
    base = sentiment.recipe()
    optimizer = AdamWConfig(lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01)
    return replace(
        base,
        data=TagsConfig(validation=0.01, test=0.05, batch=1024),
        task=TaggingConfig(),
        train=replace(base.train, optimizer=optimizer),
    )
