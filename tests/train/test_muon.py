"""Muon against the written-out rule, and both Newton-Schulz forms against each other."""

import pytest
import torch
from torch import nn

from regard.train.muon import Muon, newton_schulz, newton_schulz_small, orthogonalize


def _reference(matrix: torch.Tensor) -> torch.Tensor:
    """Jordan et al. 2024, one matrix, written out."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(8, 8), (8, 10), (8, 24), (24, 8), (1, 5)])
def test_orthogonalize_is_the_written_out_iteration(shape):
    torch.manual_seed(0)
    matrices = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    for found, matrix in zip(orthogonalize(matrices), matrices, strict=True):
        torch.testing.assert_close(found, _reference(matrix), rtol=1e-6, atol=1e-6)


def test_mixed_shapes_come_back_in_their_order():
    torch.manual_seed(0)
    matrices = [torch.randn(s) for s in [(4, 6), (6, 4), (4, 6), (5, 5), (6, 4)]]
    found = orthogonalize(matrices)
    for matrix, result in zip(matrices, found, strict=True):
        torch.testing.assert_close(result, orthogonalize([matrix])[0])
        assert result.shape == matrix.shape


def test_singular_values_come_near_one_and_vectors_stay():
    torch.manual_seed(0)
    matrix = torch.randn(64, 200, dtype=torch.float64)
    u, s, v = torch.linalg.svd(orthogonalize([matrix])[0], full_matrices=False)
    assert 0.6 < float(s.min()) <= float(s.max()) < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonalize([matrix])[0] @ v.T
    assert float((turned - turned.diagonal().diag()).abs().max()) < 1e-6


def test_the_small_form_is_the_large_one_also_for_low_rank_float32():
    torch.manual_seed(0)
    x = torch.randn(3, 32, 2) @ torch.randn(3, 2, 96)  # rank 2 of 32
    x = x / x.norm(dim=(1, 2), keepdim=True)
    exact = newton_schulz(x.double())
    torch.testing.assert_close(newton_schulz_small(x).double(), exact, rtol=0, atol=2e-3)


def test_no_gradient_at_all_moves_nothing():
    assert float(orthogonalize([torch.zeros(4, 8)])[0].abs().max()) == 0


def test_steps_are_nesterov_momentum_orthogonalized_and_scaled():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(s, dtype=torch.float64)) for s in [(12, 4), (4, 12), (12, 4)]]
    expected = [p.detach().clone() for p in parameters]
    momenta = [torch.zeros_like(p) for p in expected]
    optimizer = Muon(parameters, lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(3):
        for index, parameter in enumerate(parameters):
            gradient = torch.randn_like(parameter)
            parameter.grad = gradient
            momenta[index] = 0.9 * momenta[index] + 0.1 * gradient
            ahead = 0.1 * gradient + 0.9 * momenta[index]
            rows, columns = parameter.shape
            expected[index] *= 1 - 0.1 * 0.5
            expected[index] -= 0.1 * max(1, rows / columns) ** 0.5 * _reference(ahead)
        optimizer.step()
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-6, atol=1e-6)


def test_stacked_matrices_are_orthogonalized_each_by_itself():
    torch.manual_seed(0)
    stacked = nn.Parameter(torch.randn(20, 4))
    apart = [nn.Parameter(piece.clone()) for piece in stacked.detach().split((12, 4, 4))]
    one, three = Muon([stacked], parts={stacked: (12, 4, 4)}), Muon(apart)
    for _ in range(2):
        stacked.grad = torch.randn_like(stacked)
        for parameter, gradient in zip(apart, stacked.grad.split((12, 4, 4)), strict=True):
            parameter.grad = gradient
        one.step()
        three.step()
    torch.testing.assert_close(stacked.detach(), torch.cat([p.detach() for p in apart]))


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="matrices"):
        Muon([nn.Parameter(torch.zeros(3))])
