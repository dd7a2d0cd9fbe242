"""The pruned model is the model without the parts, and the distillation losses are their formulas."""

import pytest
import torch
from torch.nn import functional as F

from regard.compress.prune import Kept, prune, pruned, without
from regard.config import load
from regard.errors import UserError
from regard.models import GPTConfig
from regard.train.distill import cosine_difference, softened_divergence


def model(**options):
    torch.manual_seed(0)
    sizes = {"vocabulary": 40, "context": 16, "layers": 3, "heads": 4, "kv_heads": 2, "width": 32, "zero_init": False}
    return load(GPTConfig, {**sizes, **options}).build().eval()


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"qk_norm": False, "tied": False}], ids=str)
def test_a_smaller_config_with_the_kept_weights_is_the_same_function(options):
    whole, tokens = model(**options), torch.randint(40, (2, 16))
    kept = Kept((0, 2), ((1,), (0, 1), (0,)))
    with without(whole, kept):
        expected = whole(tokens)
    small = pruned(whole, kept)
    assert (small.config.layers, small.config.heads, small.config.kv_heads) == (2, 2, 1)
    torch.testing.assert_close(small(tokens), expected)
    assert not torch.allclose(whole(tokens), expected)  # restored


def test_the_parts_with_the_least_effect_are_removed():
    whole, tokens = model(), torch.randint(40, (4, 16))
    for layer in (whole.blocks.layers[1].attention.out, whole.blocks.layers[1].feedforward.down):
        torch.nn.init.zeros_(layer.weight)  # a block without any effect
    wanted = whole(tokens).detach()

    def loss():
        with torch.no_grad():
            return (whole(tokens) - wanted).square().mean().item()

    small, removed = prune(whole, 0.3, loss, lambda text: None)
    assert [one.part for one in removed] == ["block 2"]
    torch.testing.assert_close(small(tokens), wanted)


def test_heads_that_share_a_bias_are_kept():
    _, removed = prune(model(position="alibi"), 0.5, lambda: 0.0, lambda text: None)
    assert all("head" not in one.part for one in removed)


def test_repeated_blocks_are_refused():
    with pytest.raises(UserError, match="repeated"):
        prune(model(layers=4, repeat=2), 0.5, lambda: 0.0, lambda text: None)


def test_the_divergence_is_its_formula():
    torch.manual_seed(0)
    teacher, student, t = torch.randn(5, 7), torch.randn(5, 7), 3.0
    p, q = (F.softmax(x / t, -1) for x in (teacher, student))
    torch.testing.assert_close(softened_divergence(teacher, student, t), t**2 * (p * (p / q).log()).sum(-1).mean())
    assert softened_divergence(teacher, teacher, t).abs() < 1e-6


def test_features_are_compared_by_their_cosines():
    torch.manual_seed(0)
    x, turn = torch.randn(2, 5, 8), torch.linalg.qr(torch.randn(8, 8))[0]
    assert cosine_difference(x, 3 * x @ turn) < 1e-6
    assert cosine_difference(x, torch.randn(2, 5, 4)) > 0.01
