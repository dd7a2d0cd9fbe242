"""One token on a CPU: the few operations of a decoding step give what the layers give, and refuse the rest."""

import pytest
import torch

import regard.nn.fused.decode_gemv as one_row
from regard.config import load
from regard.models import GPTConfig

SIZES = {"vocabulary": 96, "context": 64, "layers": 2, "heads": 4, "width": 64, "zero_init": False, "qk_norm": False}
WINDOW = {"attention": {"kind": "window", "size": 8}}
LAST = 39  # steps after the first


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({}, LAST),
        ({"kv_heads": 2, "bias": True}, LAST),
        ({"qk_norm": True}, 0),
        ({"position": "alibi"}, 0),
        (WINDOW, 7),
    ],
    ids=["plain", "grouped", "normalized", "biased", "window"],
)
def test_tokens_decode_as_the_full_pass(options, used, monkeypatch):
    """The fast way runs where it applies: not with norms or biases, and in a window until a key is hidden."""
    torch.manual_seed(0)
    model = load(GPTConfig, {**SIZES, **options}).build().eval()
    results = []
    real = one_row.mix_token
    monkeypatch.setattr(one_row, "mix_token", lambda *a: results.append(real(*a)) or results[-1])
    tokens = torch.randint(96, (1, LAST + 1))
    with torch.no_grad():
        full = model(tokens)
    state, rows = model.start(1, 64), []
    for token in tokens.split(1, dim=1):
        logits, state = model.step(token, state)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows, 1), full, rtol=1e-4, atol=1e-5)
    assert sum(result is not None for result in results) == 2 * used


def test_an_observed_mechanism_is_called():
    """A hook on the mechanism sees every step."""
    torch.manual_seed(0)
    model = load(GPTConfig, SIZES).build().eval()
    seen = []
    for block in model.blocks.layers:
        block.attention.mechanism.register_forward_hook(lambda *_: seen.append(1))
    state = model.start(1, 8)
    for token in torch.randint(96, (1, 4)).split(1, dim=1):
        _, state = model.step(token, state)
    assert len(seen) == 4 * 2
