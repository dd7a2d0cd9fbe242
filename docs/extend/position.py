"""A position encoding: learned vectors for the position modulo a few periods, added to the embeddings.

regard train --with position.py --model.position clock --model.position.periods 7,11,13
"""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.config import option
from regard.nn import Position, PositionConfig


class Clock(Position):
    """x + sum of table_p[phase mod p]: with coprime periods p, distinct for as many positions as their product."""

    def __init__(self, periods: tuple[int, ...], width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(period, width) for period in periods)

    def embed(self, x: Tensor, phase: Tensor) -> Tensor:
        for table in self.tables:
            assert isinstance(table, nn.Embedding)
            x = x + table(phase % table.num_embeddings)
        return x


@dataclass(frozen=True)
class ClockConfig(PositionConfig, kind="clock"):
    """Learned vectors for the position modulo each period."""

    periods: tuple[int, ...] = option((7, 11, 13), "the periods")

    def check(self) -> None:
        if not self.periods or min(self.periods) < 2:
            raise ValueError(f"periods must be numbers from 2 on, not {self.periods}")

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Clock(self.periods, width)
