"""The layers with tensor masks equal those of ``torch.nn`` with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.nn import DecoderLayer, EncoderLayer, MultiHeadAttention

B, Q, K, C, H = 2, 5, 7, 16, 4


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.q, ours.k, ours.v), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


def copy_rest(ours: EncoderLayer, theirs: nn.Module, norms: dict[str, str]) -> None:
    ours.feedforward.up.load_state_dict(theirs.get_submodule("linear1").state_dict())
    ours.feedforward.down.load_state_dict(theirs.get_submodule("linear2").state_dict())
    for mine, other in norms.items():
        state = theirs.get_submodule(other).state_dict()
        ours.get_submodule(mine).load_state_dict({"gain": state["weight"], "bias": state["bias"]})


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def lively(module: nn.Module) -> None:
    """Random norms and biases, which start as 1 and 0."""
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3


MASKS = {
    "none": None,
    "shared": torch.ones(Q, K, dtype=torch.bool).tril(1),
    "rows": torch.rand(B, Q, K, generator=torch.Generator().manual_seed(0)) < 0.6,
    "padding": (torch.arange(K) < torch.tensor([7, 3])[:, None])[:, None, None],
    "heads": torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) < 0.6,
}
for table in MASKS.values():
    if table is not None:
        table[..., 0] = True  # every query sees a key


@pytest.mark.parametrize("name", MASKS)
def test_multi_head_attention(name: str) -> None:
    ours, theirs = MultiHeadAttention(C, H).double(), nn.MultiheadAttention(C, H, batch_first=True).double()
    lively(theirs)
    copy_attention(ours, theirs)
    q, k, v = random(B, Q, C), random(B, K, C), random(B, K, C)
    mask = MASKS[name]
    seen = None
    if mask is not None:
        full = mask if mask.ndim == 4 else mask.expand(B, Q, K)[:, None]
        seen = ~full.expand(B, H, Q, K).reshape(B * H, Q, K)
    want = theirs(q, k, v, attn_mask=seen, need_weights=False)[0]
    torch.testing.assert_close(ours(q, k, v, mask), want)
    if mask is None:
        torch.testing.assert_close(ours(q, k, v), want)


def test_self_attention_takes_one_sequence() -> None:
    layer, x, causal = MultiHeadAttention(C, H), torch.randn(B, Q, C), torch.ones(Q, Q, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, causal), layer(x, x, x, causal))
    torch.testing.assert_close(layer(x), layer(x, x, x))
    with pytest.raises(ValueError, match="not divisible by 3 heads"):
        MultiHeadAttention(C, 3)


def test_encoder_layer() -> None:
    ours, theirs = EncoderLayer(C, H, 32).double(), nn.TransformerEncoderLayer(C, H, 32, 0.0, batch_first=True).double()
    lively(theirs)
    copy_attention(ours.attention, theirs.self_attn)
    copy_rest(ours, theirs, {"norm_attention": "norm1", "norm_feedforward": "norm2"})
    x, mask = random(B, K, C), MASKS["padding"]
    assert mask is not None
    torch.testing.assert_close(ours(x, mask), theirs(x, src_key_padding_mask=~mask[:, 0, 0]))
    torch.testing.assert_close(ours(x), theirs(x))


def test_decoder_layer() -> None:
    ours, theirs = DecoderLayer(C, H, 32).double(), nn.TransformerDecoderLayer(C, H, 32, 0.0, batch_first=True).double()
    lively(theirs)
    copy_attention(ours.attention, theirs.self_attn)
    copy_attention(ours.cross, theirs.multihead_attn)
    copy_rest(ours, theirs, {"norm_attention": "norm1", "norm_cross": "norm2", "norm_feedforward": "norm3"})
    x, memory, source, target = random(B, Q, C), random(B, K, C), MASKS["padding"], torch.ones(Q, Q).tril().bool()
    assert source is not None
    want = theirs(x, memory, tgt_mask=~target, memory_key_padding_mask=~source[:, 0, 0])
    torch.testing.assert_close(ours(x, memory, source, target), want)


def test_dropout_is_inside_the_feedforward_network_too() -> None:
    layer = EncoderLayer(C, H, 32, dropout=0.5)
    x = torch.randn(B, K, C)
    assert not torch.equal(layer.feedforward(x), layer.feedforward(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_gradients_flow_through_a_mask() -> None:
    layer, x = MultiHeadAttention(C, H), torch.randn(B, Q, C, requires_grad=True)
    layer(x, torch.eye(Q, dtype=torch.bool)).square().sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None for p in (layer.q.weight, layer.v.weight, layer.out.weight))
