"""Classes called causal whose logits depend on later tokens: CPM-Ant, ProphetNet, XLM and XLNet."""

import torch
from transformers import (
    CpmAntConfig,
    CpmAntForCausalLM,
    ProphetNetConfig,
    ProphetNetForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

cpm = CpmAntConfig(vocab_size=96, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=64, num_hidden_layers=2)
prophet = {"hidden_size": 32, "num_decoder_layers": 2, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 64}
MODELS = {
    CpmAntForCausalLM: cpm,  # the mask takes the whole input as context
    ProphetNetForCausalLM: ProphetNetConfig(vocab_size=96, is_decoder=True, add_cross_attention=False, **prophet),
    XLMWithLMHeadModel: XLMConfig(vocab_size=96, emb_dim=32, n_layers=2, n_heads=4),  # causal=False is its default
    XLNetLMHeadModel: XLNetConfig(vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=64),  # needs perm_mask
}
for kind, config in MODELS.items():
    torch.manual_seed(0)
    model = kind(config).double().eval()
    one = torch.randint(8, 90, (1, 12))
    other = one.clone()
    other[0, 1] = 5
    with torch.no_grad():
        difference = (model(input_ids=one).logits - model(input_ids=other).logits).abs().amax(-1)[0]
    print(
        kind.__name__,
        "logits that move with the token at position 1:",
        difference.gt(1e-9).nonzero().flatten().tolist(),
    )
