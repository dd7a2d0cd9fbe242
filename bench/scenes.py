"""Are drawn scenes read as asked? An independent reader, a support vector machine, reads what a run draws.

    python -m bench.scenes runs/text-to-image --part test --count 300 --temperature 0.5

The reader is trained on quarters of real training scenes and shares nothing with the run; its own share of right
readings of real scenes of the same part is the ceiling, and is printed too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import SVC

from regard.data import ScenesConfig
from regard.data.images.arrays import Pixels
from regard.data.scenes.data import SceneData
from regard.data.scenes.draw import places
from regard.data.scenes.grammar import COLORS, DIGITS, Caption
from regard.generate import Sampling
from regard.generate.load import load_trained
from regard.generate.pictures import pictures
from regard.models import TextToImage
from regard.runs import Run
from regard.train import Experiment

INK = 90  # of 255: the least brightness of a digit
HUES = np.array(tuple(COLORS.values()), float)


def quarters(image: Pixels) -> list[Pixels]:
    """The quarters [3, 12, 12] of a scene."""
    half = image.shape[1] // 2
    return [image[:, y : y + half, x : x + half] for y in (0, half) for x in (0, half)]


def centered(quarter: Pixels) -> np.ndarray:
    """The brightness of a quarter with its center of mass in the middle, flat."""
    light = quarter.max(0).astype(float)
    light = light * (light > INK / 3) / max(light.max(), 1)
    half = np.array(light.shape) / 2 - 0.5
    mass = np.array([(light.sum(1 - axis) * np.arange(light.shape[axis])).sum() for axis in (0, 1)]) / light.sum()
    shift = np.rint(half - mass).astype(int)
    return np.roll(light, tuple(shift), (0, 1)).ravel()


def color(quarter: Pixels) -> int:
    """The color whose direction is nearest to that of the ink."""
    flat = quarter.reshape(3, -1).astype(float)
    mean = flat[:, flat.max(0) > INK].mean(1)
    return int((HUES @ mean / np.linalg.norm(HUES, axis=1)).argmax())


class Reader:
    """Reads the digits and colors of scenes."""

    def __init__(self, data: SceneData, scenes: int = 3000):
        inputs, labels = [], []
        for number in range(scenes):
            caption, scene = data.caption("train", number), data.scene("train", number)
            random = data.random("train", number)
            parts = quarters(scene.image)
            for group, chosen in zip(caption.groups, places(caption, random[0], random[1]), strict=True):
                for quarter in chosen:
                    inputs.append(centered(parts[quarter]))
                    labels.append(group.digit)
        self.digits = SVC(C=10, gamma="scale").fit(np.array(inputs), labels)

    def pairs(self, image: Pixels) -> list[int | None]:
        """The pair of color and digit in each quarter; None: nothing is there."""
        found: list[int | None] = [None] * 4
        for number, quarter in enumerate(quarters(image)):
            if (quarter.max(0) > INK).sum() >= 4:
                digit = int(self.digits.predict(centered(quarter)[None])[0])
                found[number] = DIGITS * color(quarter) + digit
        return found

    def reads(self, image: Pixels, caption: Caption) -> bool:
        """Whether a scene shows exactly what its canonical caption says."""
        found, number = self.pairs(image), sum(group.number for group in caption.groups)
        where = [[n for n, pair in enumerate(found) if pair == group.pair] for group in caption.groups]
        if sum(pair is not None for pair in found) != number:
            return False
        if [len(own) for own in where] != [group.number for group in caption.groups]:
            return False
        if caption.relation is None:
            return True
        first, second = ([divmod(n, 2)[caption.relation == "left of"] for n in own] for own in where)
        return not any(first) and all(second)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Print the shares as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--part", choices=("validation", "test"), default="test")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    run = Run.open(options.run)
    config, model = run.load(Experiment).data, load_trained(run).model
    assert isinstance(config, ScenesConfig)
    assert isinstance(model, TextToImage)
    data = config.build(0)
    reader = Reader(data)
    captions = [data.caption(options.part, number) for number in range(options.count)]
    drawn = pictures(model, [one.tokens for one in captions], Sampling(options.temperature), options.seed).numpy()
    real = [data.scene(options.part, number).image for number in range(options.count)]
    shares = {
        name: float(np.mean([reader.reads(image, one) for image, one in zip(images, captions, strict=True)]))
        for name, images in (("drawn", list(drawn)), ("real", real))
    }
    result = {**vars(options), "run": str(options.run), "read_as_asked": shares["drawn"], "real_scenes": shares["real"]}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
