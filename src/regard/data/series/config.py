"""Which time series an experiment trains on: a built-in source, or a table of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import option
from regard.data.base import DataConfig, Example
from regard.data.origins.cache import cache_folder
from regard.data.series.data import SeriesData, series_examples
from regard.data.series.table import SeriesTable, read_series
from regard.data.sources import all_sources, find_source
from regard.data.split import check_fractions, split
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.pages.heat import series_picture

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

FORM = "series"  # what sources name


@dataclass(frozen=True)
class SeriesConfig(DataConfig, kind="series"):
    """Time series to forecast: a table with a row for each point in time, at equal distances."""

    path: str | None = option(None, "your own table: a .csv, .tsv or .jsonl file with a name for each column")
    source: str = option("etth1", "the series to fetch when no path is given; `regard data` lists them")
    columns: tuple[str, ...] = option((), "the series, by the names of their columns (default: all columns of numbers)")
    points: int = option(512, "look-back: points of the history that a forecast is made from")
    horizon: int = option(96, "points to forecast")
    limit: int | None = option(None, "use the first rows of the table only, this many")
    validation: float = option(0.2, "the fraction of the rows held out for evaluation, after those for training")
    test: float = option(0.2, "the fraction held out for a final test, at the end")
    batch: int = option(128, "windows per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("points", "horizon", "limit", "batch"):
            if (value := vars(self)[name]) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.path is None and find_source(self.source).labels != FORM:
            known = ", ".join(name for name, source in all_sources().items() if source.labels == FORM)
            raise ValueError(f"source '{self.source}' has no time series; with series are: {known}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SeriesData:
        """Read and divide the table; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        path = Path(self.path).expanduser() if self.path else find_source(self.source).fetch(cache or cache_folder())
        values, columns, times = read_series(path, self.columns)
        table = SeriesTable(values[: self.limit], columns, times[: self.limit])
        parts = split(len(table.values), self.validation, self.test)
        return SeriesData(table, parts, self.points, self.horizon, name=self.path or self.source)

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        from regard.models import ForecasterConfig

        names = model.forecast.columns if isinstance(model, ForecasterConfig) else ()
        return series_picture(batch.inputs[0].T.tolist(), weights.tolist(), names)

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        if not path.is_file():
            raise UserError(f"there is no file {path}; give a table with the series that are to be continued")
        return series_examples(path, model)
