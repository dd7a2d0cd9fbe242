"""An encoder that is pretrained on Shakespeare's plays."""

from dataclasses import replace

from regard.models import EncoderConfig
from regard.nn.positions.position import RotaryConfig
from regard.recipes import shakespeare_encoder
from regard.train import Experiment


def recipe() -> Experiment:
    """An encoder, 4 layers x 192, that learns to fill in masked characters of the plays for a quarter of an hour.

    regard train masked-plays

    Whole words at once: --data.words true --task.whole_words true. Fine-tune it: regard train sentiment --init RUN
    """
    base = shakespeare_encoder.recipe()
    model = EncoderConfig(context=128, layers=4, heads=6, width=192, position=RotaryConfig())
    return replace(
        base, model=model, train=replace(base.train, steps=None, seconds=900.0, evaluate_every=1000, save_every=1000)
    )
