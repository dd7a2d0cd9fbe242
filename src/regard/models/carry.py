"""A state carried from batch to batch: truncated back-propagation through time (Werbos 1990)."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from regard.errors import UserError
from regard.nn import RecurrentState


class Carried(nn.Module):
    """The last states of the rows of the previous update, as buffers, so that checkpoints contain them.

    They have as many rows as its micro-batches together, the oldest micro-batch first, and none before the first
    update. They carry no gradient.
    """

    hidden: Tensor
    cell: Tensor | None

    def __init__(self, layers: int, width: int, *, with_cell: bool):
        super().__init__()
        self.register_buffer("hidden", torch.zeros(0, layers, width))
        self.register_buffer("cell", torch.zeros(0, layers, width) if with_cell else None)

    def initial(self, batch: int, micro_batches: int, *, starts: bool) -> list[RecurrentState] | None:
        """The first state of each layer; None if the batch ``starts`` a text, or has another number of rows."""
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            raise UserError(
                "a carried state is saved by one process only; train in one process, or set --model.carry false"
            )
        if not starts and not len(self.hidden):
            raise UserError(
                "carry needs consecutive windows, but these are drawn at random; "
                "set --data.order consecutive, or --model.carry false"
            )
        if starts or len(self.hidden) != batch * micro_batches:
            return None
        # Copies, because `store` overwrites the buffers before the backward pass.
        hidden = self.hidden[:batch].clone().split(1, dim=1)
        cell = [None] * len(hidden) if self.cell is None else self.cell[:batch].clone().split(1, dim=1)
        return [RecurrentState(*both) for both in zip(hidden, cell, strict=True)]

    @torch.no_grad()
    def store(self, states: list[RecurrentState], micro_batches: int) -> None:
        """Store the last state of each layer in place of the oldest micro-batch."""
        batch = states[0].hidden.shape[0]
        self.resize(batch * micro_batches)
        hidden = torch.cat([state.hidden for state in states], dim=1)
        self.hidden.copy_(torch.cat((self.hidden[batch:], hidden)))
        if self.cell is not None:
            cell = torch.cat([state.cell for state in states if state.cell is not None], dim=1)
            self.cell.copy_(torch.cat((self.cell[batch:], cell)))

    def resize(self, rows: int) -> None:
        """Reallocate the buffers for ``rows`` rows."""
        if rows != len(self.hidden):
            self.hidden = self.hidden.new_zeros(rows, *self.hidden.shape[1:])
            self.cell = None if self.cell is None else torch.zeros_like(self.hidden)
