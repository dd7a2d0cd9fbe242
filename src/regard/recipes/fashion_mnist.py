"""A Vision Transformer for the pieces of clothing of Fashion-MNIST."""

from dataclasses import replace

from regard.data import ImagesConfig
from regard.recipes import mnist
from regard.train import Experiment


def recipe() -> Experiment:
    """The Vision Transformer of `mnist` on Fashion-MNIST, where sleeves and soles matter more than strokes.

    regard train fashion-mnist
    """
    base = mnist.recipe()
    data = ImagesConfig(source="fashion-mnist", validation=0.02, crop=2, flip=True, batch=128)
    return replace(base, data=data)
