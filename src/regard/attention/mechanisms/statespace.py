"""State-space models: S4D, whose coefficients are constant, and the selective scan, whose follow from the token."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.call import Plan
from regard.attention.mechanisms.recurrence import Boundaries, Recurrence
from regard.attention.mechanisms.scan import state_space

SLOWEST, FASTEST = 1e-3, 1e-1  # the initial step sizes (Gu et al. 2022, sec. 4.3)
CACHED = 2**19  # numbers that a CPU transforms at a time: twice as fast as all channels of 65,536 tokens at once
Spectrum = Literal["lin", "inv"]


class S4D(Recurrence):
    """Diagonal state spaces with constant coefficients: a convolution over whole texts, a recurrence while decoding.

    Complex coefficients in conjugate pairs, of which one is kept; zero-order hold (Gu et al. 2022, eq. 4 and sec. 3.3).
    """

    def __init__(self, heads: int, width: int, state: int, spectrum: Spectrum):
        super().__init__(heads, width, state // 2)
        self.spectrum = spectrum
        size = self.channels * self.state
        self.log_step = nn.Parameter(torch.empty(self.channels))
        self.log_decay, self.frequency = nn.Parameter(torch.empty(size)), nn.Parameter(torch.empty(size))  # of A
        self.c = nn.Parameter(torch.empty(2 * size))
        self.skip = nn.Parameter(torch.empty(self.channels))
        self.reset()

    def reset(self) -> None:
        """S4D-Lin: A_n = -1/2 + iπn; S4D-Inv: A_n = -1/2 + i N/π (N/(2n+1) - 1), of N numbers (sec. 4.3)."""
        n, size = torch.arange(self.state, dtype=torch.float64), 2 * self.state
        frequency = math.pi * n if self.spectrum == "lin" else size / math.pi * (size / (2 * n + 1) - 1)
        with torch.no_grad():
            self.frequency.copy_(frequency.repeat(self.channels))
        nn.init.constant_(self.log_decay, math.log(0.5))
        nn.init.uniform_(self.log_step, math.log(SLOWEST), math.log(FASTEST))
        nn.init.normal_(self.c, std=0.5**0.5)
        nn.init.ones_(self.skip)

    def state_type(self, dtype: torch.dtype) -> torch.dtype:
        return torch.complex128 if dtype == torch.float64 else torch.complex64

    def over(
        self, q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if before is None and boundaries.keep is None:
            return convolve(v, self.kernel(v.shape[1])) + self.skip * v, v
        dt, real, imaginary, (c, d) = self._coefficients()
        dt = dt[None, None] if boundaries.real is None else dt * boundaries.real[:, :, None]
        u = v if boundaries.real is None else v * boundaries.real[:, :, None]
        before = self._empty(v) if before is None else before
        one, out = before.new_ones(1, 1, self.state), torch.complex(c, d).T[None, None]
        y, after = state_space(dt, torch.complex(real, imaginary).T, u, one, out, boundaries.keep, before)
        return y + self.skip * v, after

    def _coefficients(self) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The step size [D], A and 2 C B̄ [D, S], in real and imaginary parts: B̄ = (exp(dt A) - 1) / A (eq. 4)."""
        own = torch.promote_types(self.c.dtype, torch.float32)
        dt = self.log_step.to(own).exp()
        decay, frequency = (x.to(own).view(self.channels, -1) for x in (-self.log_decay.exp(), self.frequency))
        size, angle = (dt[:, None] * decay).exp(), dt[:, None] * frequency
        a, b = size * angle.cos() - 1, size * angle.sin()
        norm = decay.square() + frequency.square()
        a, b = (a * decay + b * frequency) / norm, (b * decay - a * frequency) / norm
        c, d = self.c.to(own).view(2, self.channels, self.state)
        return dt, decay, frequency, (2 * (c * a - d * b), 2 * (c * b + d * a))

    def kernel(self, length: int) -> Tensor:
        """The response to a unit at each distance, [D, length]: K_l = Re Σ_n 2 C_n B̄_n exp(l dt A_n) (eq. 5).

        The exponentials of l = i M + j are products of those of i M and of j: √length of them instead of length.
        """
        dt, decay, frequency, (c, d) = self._coefficients()
        size = length if torch.compiler.is_exporting() else math.isqrt(length - 1) + 1
        coarse = size * torch.arange(-(-length // size), device=dt.device)
        fine = torch.arange(size, device=dt.device)
        (a, b), (e, f) = (_powers(dt[:, None] * decay, dt[:, None] * frequency, at) for at in (coarse, fine))
        c, d = c[..., None], d[..., None]
        left, right = torch.cat((c * a - d * b, -(c * b + d * a)), dim=1), torch.cat((e, f), dim=1)  # [D, 2 S, ·]
        return (left.mT @ right).flatten(1)[:, :length]

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        seen, far = self._seen(q, plan)
        sizes = self.kernel(k.shape[2]).abs().unflatten(0, (self.heads, self.width)).mean(1).to(q.dtype)  # [H, K]
        return sizes[:, far.expand(len(q), -1, -1, -1)[:, 0]].transpose(0, 1) * seen


def _powers(decay: Tensor, frequency: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """exp(l (decay + i frequency)) for l in ``at``: real and imaginary part, [D, S, L]."""
    size, angle = (decay[..., None] * at).exp(), frequency[..., None] * at
    return size * angle.cos(), size * angle.sin()


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """y_t = Σ_l kernel_l x_{t-l} per channel, for x [B, N, D] and kernel [D, N], by Fourier transforms.

    Rounding errors are relative to the largest of all outputs, so that a later input may change earlier outputs, by no
    more than rounding. At all lengths this is faster than a product with a matrix [N, N] per channel.
    """
    length = x.shape[1]
    if torch.compiler.is_exporting():  # ONNX has no complex numbers
        place = torch.arange(length, device=x.device)
        far = place[:, None] - place
        return torch.einsum("dnm,bmd->bnd", kernel[:, far.clamp(min=0)] * (far >= 0), x)
    size = 1 << (2 * length - 1).bit_length()
    most = max(1, CACHED // (len(x) * size)) if x.device.type == "cpu" else x.shape[2]  # channels at a time
    parts = []
    for u, k in zip(x.split(most, dim=2), kernel.split(most), strict=True):
        spectrum = torch.fft.rfft(u.mT, n=size) * torch.fft.rfft(k, n=size)
        parts.append(torch.fft.irfft(spectrum, n=size)[..., :length].mT)
    return torch.cat(parts, dim=2)


class SelectiveScan(Recurrence):
    """State spaces whose step size, inputs and outputs follow from the token (Gu and Dao 2023, sec. 3.2).

    Queries hold C [B, H, N, S], keys B and the step sizes before softplus [B, H, N, S + D], alike in S for all heads.
    """

    def __init__(self, heads: int, width: int, state: int):
        super().__init__(heads, width, state)
        self.log_decay = nn.Parameter(torch.empty(self.channels * state))
        self.step_bias, self.skip = nn.Parameter(torch.empty(self.channels)), nn.Parameter(torch.empty(self.channels))
        self.reset()

    def reset(self) -> None:
        """A_n = -(n + 1) (S4D-Real, sec. 3.6); step sizes log-uniform, in inverse softplus."""
        with torch.no_grad():
            self.log_decay.copy_(torch.arange(1, self.state + 1, dtype=torch.float64).log().repeat(self.channels))
            nn.init.uniform_(self.step_bias, math.log(SLOWEST), math.log(FASTEST))
            self.step_bias.copy_(self.step_bias.exp().expm1().log())
        nn.init.ones_(self.skip)

    def over(
        self, q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        b, dt = self._keys(k)
        dt = dt.transpose(1, 2).flatten(2)
        dt = dt if boundaries.real is None else dt * boundaries.real[:, :, None]
        a = -self.log_decay.view(self.channels, self.state).T.exp()
        before = self._empty(v) if before is None else before
        y, after = state_space(dt, a, dt * v, b[:, 0], q[:, 0], boundaries.keep, before)
        return y + self.skip * v, after

    def _keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """B [B, H, N, S] and the step sizes [B, H, N, D]."""
        b, dt = k.split([self.state, self.width], dim=-1)
        return b, F.softplus(dt + self.step_bias.view(self.heads, 1, self.width))

    @torch.no_grad()
    def weights(self, q: Tensor, k: Tensor, plan: Plan) -> Tensor:
        """Σ_s C_is B_js exp(A_s (t_i - t_j)) dt_j, where t is the sum of the step sizes."""
        b, dt = self._keys(k)
        a = -self.log_decay.view(self.heads, self.width, self.state, 1, 1).exp()
        pairs = [q[..., s, None] * b[:, :, None, :, s] for s in range(self.state)]

        def weigh(d: int, since: Tensor) -> Tensor:
            total = sum((pair * (since * a[:, d, s]).exp() for s, pair in enumerate(pairs)), torch.zeros(()))
            return total.abs() * dt[:, :, None, :, d]

        return self._mean_weights(dt.cumsum(2), plan, weigh) * self._seen(q, plan)[0]
