"""The study of the feed-forward network: models of equal size, tokens that are alike, and words that follow."""

import pytest
import torch

from regard.models.size import describe
from regard.nn.feedforward import FeedForward, relu_squared
from regard.studies import ffn
from regard.studies.ffn import KERNEL, LINEAR, NONE, RATIOS, STACKS, USUAL, WIDTHS, Variant
from regard.studies.short_training import band, compared

ALIKE = [1.0, 0.1, *[0.001] * 23]
LOSSES = {f"{ratio}x": [2.5 - ratio / 100, 2.6 - ratio / 100] for ratio in RATIOS} | {
    NONE: [2.5, 2.6],
    **{f"width {width}": [2.3, 2.4] for width in WIDTHS[1:]},
    KERNEL: [2.1, 2.2],
    LINEAR: [2.4, 2.4],
}


def test_equal_parameters_are_equal():
    found = ffn.equal_parameters(83)
    sizes = [ffn.parameters(variant, 83) for variant in found.values()]
    assert found[NONE].units == 0
    assert max(sizes) / min(sizes) < 1.005
    assert found[KERNEL].units == pytest.approx(found[USUAL].units / 2, abs=1)  # 3 taps and down, for one and down


def test_with_kernel_1_it_is_the_position_wise_network():
    torch.manual_seed(1)
    studied = ffn.StudiedFeedForwardConfig(variant=Variant(8, 12)).build(8, bias=False)
    usual = FeedForward(8, 12, relu_squared)
    studied.load_state_dict({name.replace("up.", "up.mix."): x for name, x in usual.state_dict().items()})
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(studied(x), usual(x))


def test_with_kernel_3_it_reads_the_two_tokens_before_and_none_after():
    torch.manual_seed(1)
    network = ffn.StudiedFeedForwardConfig(variant=Variant(8, 12, kernel=3)).build(8, bias=False)
    x = torch.randn(1, 6, 8, requires_grad=True)
    (slope,) = torch.autograd.grad(network(x)[0, 3].sum(), x)
    assert [bool(one) for one in slope[0].abs().sum(-1) > 0] == [False, True, True, True, False, False]


def test_the_model_has_the_sizes_of_its_variant():
    config = ffn.model_config(Variant(16, 24, linear=True), 11)
    with_network, without = (describe(c)["parameters"] for c in (config, ffn.model_config(Variant(16, 0), 11)))
    assert with_network - without == ffn.LAYERS * 2 * 16 * 24


def test_the_own_share_of_tokens():
    assert ffn.own_share(torch.ones(2, 4, 3)) == 0
    assert ffn.own_share(torch.tensor([[[1.0], [-1.0]]])) == pytest.approx(1)


def test_attention_alone_makes_tokens_alike_and_residuals_do_not():
    own = {name: ffn.own_shares(*parts, seed=1) for name, parts in STACKS.items()}
    assert all(len(shares) == ffn.DEPTH + 1 and shares[0] > 0.9 for shares in own.values())
    assert own["attention"][-1] < 1e-6
    assert own["attention, residual"][-1] > 0.05


def test_the_first_layer_of_tokens_that_are_alike():
    assert ffn.first_alike(ALIKE) == 2
    assert ffn.first_alike([1.0, 0.001, 0.5]) is None  # not from there on


def test_words_follow_from_losses():
    own = dict.fromkeys(STACKS, tuple(ALIKE)) | {"attention, residual": [1.0, 0.5]}
    said = " ".join(ffn.words(LOSSES, {name: list(shares) for name, shares in own.items()}))
    assert "4 times as many hidden units is 0.040 ± 0.000 lower than with attention only" in said
    assert "is 0.200 ± 0.000 lower than that of attention only: the network earns its parameters here" in said
    assert f"The lowest mean loss: {KERNEL}, 2.150" in said
    assert "the loss is 0.200 ± 0.000 lower than with kernel 1; without an activation it is no different than" in said
    assert "attention from layer 2 on, 0.001 at the end" in said
    assert "attention, residual not, 0.5 at the end" in said
    worse = ffn.words(LOSSES | {NONE: [2.3, 2.3]}, {"attention": ALIKE})
    assert "the network does not measurably earn its parameters here" in " ".join(worse)


def test_losses_are_compared_by_seed():
    assert compared([1.0, 2.0], [1.5, 2.5], "b") == "0.500 ± 0.000 lower than b"
    assert compared([1.0, 2.0], [1.5, 2.0], "b").startswith("no different than b (-0.250 ± 3.")
    assert compared([1.0, float("inf")], [1.5, 2.0], "b").startswith("no different than b")


def test_a_band_leaves_out_what_is_not_finite():
    series = band("name", {1.0: [1.0, 2.0], 2.0: [1.0, float("inf")], 3.0: [2.0]}, 3)
    assert series.points == [(1.0, 1.5), (3.0, 2.0)]
    assert [x for x, *_ in series.band] == [1.0]


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(ffn, "SEEDS", 2)
    found = ffn.study(0.01, 1, lambda line: None)
    assert set(found.numbers["losses"]) == set(LOSSES)
    assert len(found.charts) == 3
