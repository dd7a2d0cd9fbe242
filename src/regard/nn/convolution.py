"""Causal convolution: each place sees itself and a few earlier ones, a dilation apart (van den Oord et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.linear import Linear


class CausalConvolution(nn.Module):
    """y_t = Σ_j W_j x_{t - j·dilation} + b, j = 0 .. kernel - 1; what lies before the text is zero.

    The taps are laid side by side and multiplied at once, the oldest first: one matrix product per layer, and the same
    one whether a whole text comes in or one token. `F.conv1d` gives the same (tests/nn/test_convolution.py).
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 2, dilation: int = 1, bias: bool = False):
        super().__init__()
        self.inputs, self.kernel, self.dilation = inputs, kernel, dilation
        self.mix = Linear(kernel * inputs, outputs, bias=bias)

    @property
    def reach(self) -> int:
        """How many places back the oldest tap is."""
        return (self.kernel - 1) * self.dilation

    @property
    def distances(self) -> list[int]:
        """How many places back each tap is, the oldest first."""
        return [j * self.dilation for j in reversed(range(self.kernel))]

    def forward(self, x: Tensor, phase: Tensor | None = None) -> Tensor:
        """x [B, N, I] -> [B, N, O]. ``phase`` [B, N]: of packed documents, how far each place is into its own."""
        padded, count = F.pad(x, (0, 0, self.reach, 0)), x.shape[1]
        taps = [padded[:, self.reach - far : self.reach - far + count] for far in self.distances]
        if phase is not None:
            taps = [torch.where((phase >= far)[:, :, None], t, 0) for far, t in zip(self.distances, taps, strict=True)]
        return self.mix(torch.cat(taps, dim=-1))

    def start(self, batch: int) -> Tensor:
        """The latest inputs, none yet: [B, reach, I]. The input at position p lies at p modulo reach: a ring."""
        return self.mix.weight.new_zeros(batch, self.reach, self.inputs)

    def step(self, x: Tensor, past: Tensor, position: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The outputs for x [B, T, I] after ``position`` [B] tokens, whose latest are in ``past``; x goes there too.

        ``lengths`` [B] says how many of the T are real in each row; the others leave no trace.
        """
        if not self.reach:
            return self(x)
        count, reach = x.shape[1], self.reach
        if count == 1 and lengths is None:  # read the taps and write one place: nothing is moved
            far = torch.arange(reach, 0, -self.dilation, device=x.device)
            taps = past.gather(1, self._places(position[:, None] - far))
            past.scatter_(1, self._places(position[:, None]), x.to(past.dtype))
            return self.mix(torch.cat((taps.flatten(1)[:, None], x), dim=-1))
        ring = torch.arange(-reach, 0, device=x.device)
        earlier = torch.cat((past.gather(1, self._places(position[:, None] + ring)), x), dim=1)
        taps = [earlier[:, reach - far : reach - far + count] for far in self.distances]
        real = torch.full_like(position, count) if lengths is None else lengths
        kept = (real[:, None] + ring + reach)[:, :, None].expand(-1, -1, self.inputs)
        past.scatter_(1, self._places((position + real)[:, None] + ring), earlier.gather(1, kept).to(past.dtype))
        return self.mix(torch.cat(taps, dim=-1))

    def _places(self, positions: Tensor) -> Tensor:
        """Where in the ring these positions [B, P] lie, for all inputs: [B, P, I]."""
        return (positions % self.reach)[:, :, None].expand(-1, -1, self.inputs)
