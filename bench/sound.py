"""Baselines of the sound recipes: mean MFCCs with logistic regression, and the error rates of a Whisper.

python -m bench.sound mfcc [source]           spoken languages, on the parts of `regard train spoken-language`
python -m bench.sound whisper RUN [count]     Dutch, on the test part of `regard train dutch-speech`
python -m bench.sound across RUN              a run of spoken-language on the letters of another corpus
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data import SoundsConfig
from regard.data.signals.arrays import to_floats
from regard.data.signals.data import array_batch, cut
from regard.data.signals.speech import SpeechData, normalized
from regard.generate.load import load_trained
from regard.generate.transcription import load_transcriber
from regard.nn.sound import STFT, mel_filters
from regard.recipes import recipe
from regard.runs import Run
from regard.tasks.speech import edits

BANDS, COEFFICIENTS = 40, 20


def mfccs(sound: Tensor, rate: int) -> Tensor:
    """The mean and the deviation over time of the mel-frequency cepstral coefficients of a sound [T], [2 x 20]."""
    window, hop = rate // 40, rate // 100
    power = STFT(window, hop)(sound[None])[0].square().sum(0)
    log = (mel_filters(BANDS, rate, window).float() @ power + 1e-8).log()
    places = torch.arange(BANDS)
    cosines = torch.cos(math.pi / BANDS * (places + 0.5) * torch.arange(COEFFICIENTS)[:, None])
    found = cosines @ log
    return torch.cat((found.mean(1), found.std(1, correction=0)))


def mean_mfcc(source: str) -> None:
    """Accuracy of a logistic regression; its strength is chosen on the validation part."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    config = SoundsConfig(source=source)
    data = config.build(0)
    sets = {}
    for part, signals in data.parts.items():
        sounds = [torch.from_numpy(cut(to_floats(one), config.longest, 0.5)[:, 0]) for one in signals.values]
        sets[part] = (
            torch.stack([mfccs(one, config.rate) for one in sounds]).numpy(),
            [int(t[0]) for t in signals.targets],
        )
    for name, size in (("mean", COEFFICIENTS), ("mean and deviation", 2 * COEFFICIENTS)):
        scaler = StandardScaler().fit(sets["train"][0][:, :size])
        parts = {part: (scaler.transform(x[:, :size]), y) for part, (x, y) in sets.items()}
        models = [LogisticRegression(C=c, max_iter=5000).fit(*parts["train"]) for c in (0.01, 0.1, 1, 10, 100)]
        best = max(models, key=lambda model: model.score(*parts["validation"]))
        scores = ", ".join(f"{part} {best.score(*parts[part]):.4f}" for part in parts)
        count = len(sets["test"][1])
        print(f"{source}: logistic regression on {name} of {COEFFICIENTS} MFCCs: {scores} ({count} in test)")


def whisper(name: str, count: int | None) -> None:
    """Errors of a Whisper, told that the language is Dutch, on the same held-out sentences."""
    data = recipe("dutch-speech").data.build(0)
    assert isinstance(data, SpeechData)
    transcriber = load_transcriber(Run.open(Path(name)), language="nl")
    sums, begin = np.zeros(4), time.monotonic()
    examples = data.held_out(count or data.test_count or 0)
    for one in examples:
        found = normalized(" ".join(piece.text for piece in transcriber.transcribe(one.batch.inputs[0, :, 0])))
        given = one.given or ""
        sums += (edits(given, found), len(given), edits(given.split(), found.split()), len(given.split()))
    print(f"{name}: {len(examples)} sentences, character errors {sums[0] / sums[1]:.4f}, words {sums[2] / sums[3]:.4f}")
    print(f"{time.monotonic() - begin:.0f} s")


def across(run: str) -> None:
    """Accuracy on letters and syllables in the languages that the run knows, by other voices."""
    loaded = load_trained(Run.open(Path(run)))
    names = loaded.model.config.head.names  # type: ignore[attr-defined]
    data = SoundsConfig(source="spoken-letters", validation=0.0, test=0.0).build(0)
    right: dict[str, list[bool]] = {name: [] for name in names}
    with torch.no_grad():
        for values, target in zip(*data.parts["train"], strict=True):
            if (label := data.labels[int(target[0])]) in right:
                batch = array_batch([cut(to_floats(values), 32_000, 0.5)], (target,), True)
                right[label].append(names[int(loaded.model(*batch.arguments).argmax())] == label)
    every = [one for some in right.values() for one in some]
    each = {name: round(float(np.mean(some)), 3) for name, some in right.items() if some}
    print(f"spoken-letters: {np.mean(every):.4f} of {len(every)}; {each}")


if __name__ == "__main__":
    what, *given = sys.argv[1:] or ["mfcc"]
    if what == "mfcc":
        mean_mfcc(given[0] if given else "phone-prompts")
    elif what == "whisper":
        whisper(given[0], int(given[1]) if len(given) > 1 else None)
    else:
        across(given[0])
