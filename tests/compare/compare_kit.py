"""Small contenders on a small text."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.trials import Outcome, Trial
from regard.trials.pool import finished, run_trial

PLAIN = "--model.ngrams 1 --model.cap none"
#: Every architecture of the flagship comparison, and two more state-space layers.
CONTENDERS = {
    "transformer": f"shakespeare-small {PLAIN}",
    "window": f"shakespeare-small {PLAIN} --model.attention window --model.attention.size 8",
    "linear": f"shakespeare-small {PLAIN} --model.attention linear",
    "performer": f"shakespeare-small {PLAIN} --model.attention performer",
    "conv": "shakespeare-conv --model.layers 4",
    "rnn": "shakespeare-rnn",
    "lstm": "shakespeare-lstm",
    "gru": "shakespeare-gru",
    "mingru": f"shakespeare-mingru {PLAIN} --model.layers 2",
    "s4d": f"shakespeare-ssm {PLAIN} --model.layers 2",
    "mamba": f"shakespeare-mamba {PLAIN} --model.layers 2",
}


def keys(folder: Path) -> dict[str, object]:
    """Options of a small experiment on a text that is written into the folder."""
    draw, path = random.Random(1), folder / "text.txt"
    if not path.exists():
        words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(50)]
        path.write_text(" ".join(draw.choices(words, k=2000)))
    return {
        "data.path": str(path),
        "data.batch": 2,
        "model.context": 16,
        "train.optimizer": "adamw",
        "train.optimizer.lr": 3e-3,
        "train.evaluate_tokens": 200,
        "train.device": "cpu",
    }


@dataclass
class InProcess:
    """`train_trials` without processes, which counts what it trains; it stops before trial number ``stop``."""

    stop: int | None = None
    trained: list[str] = field(default_factory=list)

    def __call__(
        self,
        trials: Sequence[Trial],
        folder: Path,
        workers: int | None = None,
        say: Callable[[str], None] = print,
        threads: int | None = None,
        observers: Sequence[type] = (),
    ) -> Iterator[tuple[Trial, Outcome]]:
        for trial in trials:
            outcome = finished(folder, trial)
            if outcome is None:
                if len(self.trained) == self.stop:
                    raise KeyboardInterrupt
                self.trained.append(trial.run_name)
                outcome = run_trial(folder, trial, observers)
            yield trial, outcome
