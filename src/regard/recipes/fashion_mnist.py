"""A Vision Transformer for the pieces of clothing of Fashion-MNIST."""

from dataclasses import replace

from regard.recipes import mnist
from regard.train import Experiment


def recipe() -> Experiment:
    """The Vision Transformer of `mnist` on Fashion-MNIST, where sleeves and soles matter more than strokes.

    regard train fashion-mnist
    """
    base = mnist.recipe()
    data = replace(base.data, source="fashion-mnist", flip=True)
    return replace(base, data=data, train=replace(base.train, epochs=5.0))
