"""A pretrained encoder that learns to classify reviews as positive or negative."""

from dataclasses import replace

from regard.data import ClassesConfig
from regard.models import EncoderConfig
from regard.tasks import ClassificationConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig
from regard.train.adapt import LayerwiseConfig

#: The size of MiniLM, for a training from scratch: --init scratch.
MODEL = EncoderConfig(context=512, layers=6, heads=12, width=384, dropout=0.1)
#: Fine-tuning for a quarter of an hour.
TRAIN = TrainConfig(
    seconds=900,
    optimizer=AdamWConfig(lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01),
    schedule=LinearScheduleConfig(warmup=0.1),
    evaluate_every=200,
    save_every=None,
)


def recipe() -> Experiment:
    """MiniLM, fine-tuned for a quarter of an hour to classify movie reviews as positive or negative.

    regard train sentiment

    It learns from 64 tokens of a review, and reads all of it in evaluation, in windows whose log-probabilities are
    averaged. The rates are for the small MiniLM. For a BERT of the usual size: --init FOLDER --train.adapt full
    --train.optimizer.lr 2e-5 --train.epochs 3. From scratch: --init scratch --train.adapt full --train.optimizer.lr
    1e-3. The head only: --train.adapt frozen. For `regard export`: --task.pool cls.
    """
    return Experiment(
        init="minilm",
        model=MODEL,
        data=ClassesConfig(
            names=("negative", "positive"), tokens=64, windows=16, validation=0.01, test=0.05, batch=2048
        ),
        task=ClassificationConfig(pool="mean"),
        train=replace(TRAIN, dropout=0.0, adapt=LayerwiseConfig(decay=1.0, head=5.0, freeze=1), evaluate_every=500),
    )
