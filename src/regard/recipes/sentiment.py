"""A pretrained encoder that learns to classify reviews as positive or negative."""

from regard.data import ClassesConfig
from regard.models import EncoderConfig
from regard.tasks import ClassificationConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig

#: The size of MiniLM, for a training from scratch: --init scratch.
MODEL = EncoderConfig(context=512, layers=6, heads=12, width=384, dropout=0.1)


def recipe() -> Experiment:
    """MiniLM, fine-tuned for a quarter of an hour to classify movie reviews as positive or negative.

    regard train sentiment

    The rate is for the small MiniLM. For a BERT of the usual size: --init FOLDER --train.optimizer.lr 2e-5
    --train.epochs 3. From scratch: --init scratch. The head only: --train.adapt frozen.
    """
    return Experiment(
        init="minilm",
        model=MODEL,
        data=ClassesConfig(names=("negative", "positive"), tokens=256, validation=0.01, test=0.05, batch=2048),
        task=ClassificationConfig(),
        train=TrainConfig(
            seconds=900,
            optimizer=AdamWConfig(lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01),
            schedule=LinearScheduleConfig(warmup=0.1),
            evaluate_every=200,
            save_every=None,
        ),
    )
