"""Causal dilated convolution (van den Oord et al. 2016)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.linear import Linear


class CausalConvolution(nn.Module):
    """y_t = Σ_j W_j x_{t - j·dilation} + b, j = 0 .. kernel - 1; inputs before the sequence are zero.

    The taps are concatenated, the oldest first, and multiplied by one matrix, for whole sequences and single tokens
    alike. `F.conv1d` gives the same outputs (tests/nn/test_convolution.py).
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 2, dilation: int = 1, bias: bool = False):
        super().__init__()
        self.inputs, self.kernel, self.dilation = inputs, kernel, dilation
        self.mix = Linear(kernel * inputs, outputs, bias=bias)

    @property
    def reach(self) -> int:
        """The distance of the oldest tap, in tokens."""
        return (self.kernel - 1) * self.dilation

    @property
    def distances(self) -> list[int]:
        """The distance of each tap, the oldest first."""
        return [j * self.dilation for j in reversed(range(self.kernel))]

    def forward(self, x: Tensor, phase: Tensor | None = None) -> Tensor:
        """x [B, N, I] to [B, N, O]. ``phase`` [B, N]: in packed rows, the position of each token in its document."""
        padded, count = F.pad(x, (0, 0, self.reach, 0)), x.shape[1]
        taps = [padded[:, self.reach - far : self.reach - far + count] for far in self.distances]
        if phase is not None:
            taps = [torch.where((phase >= far)[:, :, None], t, 0) for far, t in zip(self.distances, taps, strict=True)]
        return self.mix(torch.cat(taps, dim=-1))

    def start(self, batch: int) -> Tensor:
        """An empty ring buffer of the latest inputs, [B, reach, I]: position p is stored at p modulo reach."""
        return self.mix.weight.new_zeros(batch, self.reach, self.inputs)

    def step(self, x: Tensor, past: Tensor, position: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The outputs for x [B, T, I] after ``position`` [B] tokens, the latest of which are in ``past``; x is added.

        ``lengths`` [B] is the number of real tokens per row; the others are ignored.
        """
        if not self.reach:
            return self(x)
        count, reach = x.shape[1], self.reach
        if count == 1 and lengths is None:  # read the taps and write one input: nothing is moved
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
        """The indices of these positions [B, P] in the ring buffer, for all inputs: [B, P, I]."""
        return (positions % self.reach)[:, :, None].expand(-1, -1, self.inputs)
