"""A state carried from batch to batch: back-propagation through time, cut at the windows' borders (Werbos 1990)."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from regard.errors import UserError
from regard.nn import RecurrentState


class Carried(nn.Module):
    """The states in which the rows of the last training batch ended, as buffers: a checkpoint holds them.

    They have as many rows as the batch had, none before the first. Values go on, gradients do not.
    """

    hidden: Tensor
    cell: Tensor | None

    def __init__(self, layers: int, width: int, *, with_cell: bool):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(0, layers, width))
        self.register_buffer("cell", torch.zeros(0, layers, width) if with_cell else None)

    def before(self, batch: int, *, begins: bool) -> list[RecurrentState] | None:
        """Of each layer, what the next batch goes on from; None where it ``begins`` a text, or has other rows."""
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            raise UserError("a checkpoint holds the carried state of one process only; train in one, without carry")
        if not begins and not len(self.hidden):
            raise UserError(
                "carry goes on from one window to the next, but this text comes in windows drawn at random; "
                "set --data.order consecutive, or --model.carry false"
            )
        if begins or len(self.hidden) != batch:
            return None
        # Copies: `keep` writes into the buffers before the backward pass reads what came out of them.
        hidden = self.hidden.clone().split(1, dim=1)
        cell = [None] * len(hidden) if self.cell is None else self.cell.clone().split(1, dim=1)
        return [RecurrentState(*both) for both in zip(hidden, cell, strict=True)]

    @torch.no_grad()
    def keep(self, states: list[RecurrentState]) -> None:
        """Where the batch ended, of each layer."""
        self.make_room(states[0].hidden.shape[0])
        self.hidden.copy_(torch.cat([state.hidden for state in states], dim=1))
        if self.cell is not None:
            self.cell.copy_(torch.cat([state.cell for state in states if state.cell is not None], dim=1))

    def make_room(self, rows: int) -> None:
        """Buffers for so many rows."""
        if rows != len(self.hidden):
            self.hidden = self.hidden.new_zeros(rows, *self.hidden.shape[1:])
            self.cell = None if self.cell is None else torch.zeros_like(self.hidden)
