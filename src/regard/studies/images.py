"""How many images a Vision Transformer, a convolutional network and an LSTM need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from regard.data import ImagesConfig
from regard.models import ImageCNNConfig, ImageConfig, ImageLSTMConfig, ViTConfig
from regard.models.device import find_device
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.parallel.world import World
from regard.studies.page import Study, lines, machine
from regard.tasks import ImageClassificationConfig
from regard.train import Experiment, LinearScheduleConfig, MuonConfig, TrainConfig
from regard.train.engine import Engine
from regard.train.evaluate import evaluate

COUNTS, STEPS = (100, 300, 1000, 3000, 10_000), 600
#: About 100,000 parameters each.
MODELS: dict[str, ImageConfig] = {
    "Vision Transformer": ViTConfig(patch=7, layers=2, heads=4, width=64),
    "CNN": ImageCNNConfig(layers=2, width=52),
    "LSTM over rows": ImageLSTMConfig(layers=2, width=92),
}


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How many images does a Vision Transformer need, beside a convolutional network and an LSTM?

    regard study images

    Handwritten digits of MNIST (fetched once): models of about 100,000 parameters learn from the first 100 to 10,000
    training images for 600 steps of 64 images, shifted by up to two pixels. The study compares the accuracy on 5,000
    other images of the training part. Twenty minutes on 2 cores.
    """
    steps = max(5, round(STEPS * scale))
    task = ImageClassificationConfig()
    train = TrainConfig(steps, optimizer=MuonConfig(rest_lr=2e-3), schedule=LinearScheduleConfig(), device="auto")
    accuracy: dict[str, list[float]] = {name: [] for name in MODELS}
    sizes, device = dict.fromkeys(MODELS, 0), find_device("auto")
    for count in COUNTS:
        config = ImagesConfig(source="mnist", validation=1 / 12, limit=count, crop=2, batch=64)
        data = config.build(0)
        for name, model in MODELS.items():
            experiment = Experiment(model, config, task.fit(data), train, seed=seed)
            engine = Engine(replace(experiment, model=experiment.model_for(data)), data, World(device=device))
            for _ in range(steps):
                engine.update()
            found = evaluate(engine) or {}
            sizes[name] = sum(parameter.numel() for parameter in engine.model.parameters())
            accuracy[name].append(found["validation_accuracy"])
            say(f"{name}, {count:,} images: accuracy {accuracy[name][-1]:.1%}")
    curves = {
        name: [(float(n), 100 * x) for n, x in zip(COUNTS, values, strict=True)] for name, values in accuracy.items()
    }
    about = "Of 5,000 held-out images. All models see the same batches; fewer images are seen more often."
    chart = ChartSection(
        "Accuracy by number of training images", about, lines(curves), Axes("training images", "accuracy, %")
    )
    measured = {"counts": COUNTS, "accuracy": accuracy, "parameters": sizes}
    setting = f"MNIST, {steps} steps of 64 images, Muon, seed {seed}, {machine(device)}"
    return Study(words(accuracy, sizes), [chart], measured, setting)


def words(accuracy: dict[str, list[float]], sizes: dict[str, int]) -> list[str]:
    """What the models reach with the fewest and with the most images, and the distance of the first two."""
    few, many = f"{COUNTS[0]:,} images", f"{COUNTS[-1]:,}"
    results = [
        f"{name} ({sizes[name]:,} parameters): {values[0]:.1%} with {few}, {values[-1]:.1%} with {many}."
        for name, values in accuracy.items()
    ]
    transformer, cnn, *_ = accuracy.values()
    gaps = [100 * (second - first) for first, second in zip(transformer, cnn, strict=True)]
    return [
        " ".join(results),
        f"The CNN is {gaps[0]:+.1f} points from the Vision Transformer with {few}, {gaps[-1]:+.1f} with {many}.",
    ]
