"""Random numbers: a function of seed, stream and position; uniform, and below one in every format."""

import numpy as np
import torch

from regard.generate.sampling import BLOCK, PhiloxStreams, SamplerState, uniform


def numbers(seed: int, streams: list[int], blocks: int = 1) -> torch.Tensor:
    noise, draws, got = PhiloxStreams(seed, streams), SamplerState.start(len(streams), 0, torch.device("cpu")), []
    for _ in range(blocks):
        noise.fill(draws)
        got += [draws.next() for _ in range(BLOCK)]
    return torch.cat(got, dim=1)


def test_a_row_draws_the_same_in_any_company():
    alone = numbers(5, [3], blocks=2)
    assert torch.equal(numbers(5, [0, 3, 3, 9], blocks=2)[1:3], alone.expand(2, -1))
    assert not torch.equal(numbers(5, [2], blocks=2), alone)
    assert not torch.equal(numbers(6, [3], blocks=2), alone)


def test_the_numbers_are_those_of_philox_for_ever():
    """Written down, so that a text can be had again with a later version."""
    assert numbers(1, [0])[0, :3].tolist() == [0.3035680343067586, 0.8487087496857769, 0.1561347780434731]


def test_they_are_uniform():
    many = numbers(0, list(range(64)), blocks=4).flatten()
    shares = torch.histc(many, bins=16, min=0, max=1) / len(many)
    assert torch.allclose(shares, torch.tensor(1 / 16, dtype=torch.float64), atol=0.004)  # four deviations


def test_none_is_one():
    most = np.array([2**64 - 1], np.uint64)
    assert uniform(most, torch.float64).astype(np.float64)[0] == 1 - 2.0**-53
    assert uniform(most, torch.float32).astype(np.float32)[0] == 1 - np.float32(2.0**-24)


def test_rows_that_stay_keep_their_streams():
    noise, draws = PhiloxStreams(5, [4, 7, 4, 1]), SamplerState.start(2, 0, torch.device("cpu"))
    noise.keep([3, 0])
    noise.fill(draws)
    assert torch.equal(draws.uniforms, numbers(5, [1, 4]))
