"""Which labelled time series an experiment trains on: a built-in source, or a .ts file of the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.config import option
from regard.data.base import IGNORE_INDEX, DataConfig, Example
from regard.data.origins.cache import cache_folder
from regard.data.records import read_text
from regard.data.series.table import read_series
from regard.data.series.ts import read_archive, read_ts
from regard.data.signals.arrays import Signals, to_floats
from regard.data.signals.data import SignalData, array_batch
from regard.data.sources import all_sources, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.pages.heat import series_picture

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

FORM = "labeled series"  # what sources name


@dataclass(frozen=True)
class LabeledSeriesConfig(DataConfig, kind="labeled-series"):
    """Time series and their classes, each from its beginning to its end."""

    path: str | None = option(None, "a .ts file of your own; NAME_TEST.ts beside NAME_TRAIN.ts is its test part")
    source: str = option("vowels", "the series to fetch when no path is given; `regard data` lists them")
    longest: int | None = option(None, "points to read of a series, the middle of longer ones (default: all)")
    validation: float = option(0.1, "the fraction of the training series held out for evaluation")
    test: float = option(0.1, "the fraction held out for a final test, unless the series have a test part")
    batch: int = option(32, "series per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("longest", "batch"):
            if (value := vars(self)[name]) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.path is None and find_source(self.source).labels != FORM:
            known = ", ".join(name for name, source in all_sources().items() if source.labels == FORM)
            raise ValueError(f"source '{self.source}' has no labelled time series; with such series are: {known}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SignalData:
        """Read and divide the series by their content, so that equal ones stay together."""
        self.check()  # a config made in Python was not loaded
        path = Path(self.path).expanduser() if self.path else find_source(self.source).fetch(cache or cache_folder())
        given = read_archive(path)
        own = len(given.test.values) > 0
        groups = [hashlib.sha256(one.tobytes()).hexdigest() for one in given.train.values]
        numbers = divide(groups, self.validation, 0.0 if own else self.test)
        train, validation, test = (given.train.pick(part) for part in numbers)
        parts = (train, validation, given.test if own else test)
        return SignalData(parts, given.labels, name=self.path or self.source, longest=self.longest)

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        if path.suffix == ".ts":
            labels, given = read_ts(read_text(path).replace("\r\n", "\n"), path)
        else:  # a table is one series
            values = read_series(path).values.astype(np.float32)
            labels, given = (), Signals.of([values], [IGNORE_INDEX])
        channels = vars(model)["channels"]
        if given.values[0].shape[1] != channels:
            found = given.values[0].shape[1]
            raise UserError(f"{path} has {found} numbers at each point in time, and this model reads {channels}")
        examples = []
        for number, (values, target) in enumerate(zip(*given, strict=True), 1):
            batch = array_batch([to_floats(values)], (target,), True)
            label = labels[target[0]] if labels else None
            examples.append(Example(f"{path} {number}" if labels else str(path), batch, label))
        return examples

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return series_picture(batch.inputs[0].T.tolist(), weights.tolist(), ())
