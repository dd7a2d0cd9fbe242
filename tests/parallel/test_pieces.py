"""The pieces of all ranks are the whole tensor, each element once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.parallel.pieces import Cut, pieces, whole_shape


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 1))
def test_pieces_of_a_cut_tensor_are_the_whole(parts, ranks, dim):
    """Each of several stacked matrices is cut separately."""
    sizes = [ranks * part for part in parts]
    whole = torch.arange(sum(sizes) * 5).view(-1, 5)
    whole = whole if dim == 0 else whole.T
    again = torch.full_like(whole, -1)
    for rank in range(ranks):
        ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        ranges = tuple((end + rank * part, end + (rank + 1) * part) for end, part in zip(ends[:-1], parts, strict=True))
        cut = Cut(tuple(whole.shape), dim, ranges, "tensor")
        local = cut.of(whole)
        assert whole_shape(local, cut) == whole.shape
        for piece in pieces(local, cut):
            assert (again[piece.in_whole()] == -1).all()
            again[piece.in_whole()] = local[piece.in_local()]
    assert torch.equal(again, whole)
