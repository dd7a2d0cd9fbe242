"""One row on a GPU: the kernels between products give what the layers give."""

import pytest
import torch

from regard.config import load
from regard.models import GPTConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler has warnings of its own
]


@pytest.mark.parametrize("feedforward", ["swiglu", "relu2", "gelu"])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"kv_heads": 2, "ngrams": 2}, {"width": 96, "heads": 4}])
def test_one_row_decodes_as_the_full_pass(feedforward, options, monkeypatch):
    """In float32, where nothing is rounded away; and the kernels did run."""
    import regard.nn.fused.decode_gemv as one_row

    torch.manual_seed(0)
    sizes = {"vocabulary": 96, "context": 64, "layers": 2, "heads": 4, "width": 128, "zero_init": False}
    model = load(GPTConfig, {**sizes, "feedforward": feedforward, **options}).build().cuda().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # gains and biases that matter
            torch.nn.init.normal_(parameter, mean=0.7, std=0.2)
    used = []
    real = one_row.through
    monkeypatch.setattr(one_row, "through", lambda *a: used.append(1) or real(*a))
    tokens = torch.randint(96, (1, 40), device="cuda")
    with torch.no_grad():
        full = model(tokens)
    state, rows = model.start(1, 64), []
    for t in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, t : t + 1], state)
        rows.append(logits)
    assert len(used) == 40 * 2 * (2 if feedforward == "gelu" else 4)
    torch.testing.assert_close(torch.cat(rows, 1), full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("feedforward", ["swiglu", "relu2"])
@pytest.mark.parametrize("bias", [False, True])
def test_one_row_through_int8_weights_is_the_full_pass_of_the_decoded_ones(feedforward, bias, monkeypatch):
    import regard.nn.fused.decode_gemv as one_row
    from regard.nn.fused import install
    from regard.nn.quantized import Int8Config, quantize

    torch.manual_seed(0)
    sizes = {"vocabulary": 96, "context": 64, "layers": 2, "heads": 4, "width": 96, "zero_init": False, "bias": bias}
    model = load(GPTConfig, {**sizes, "feedforward": feedforward}).build().cuda().eval()
    quantize(model, Int8Config())
    install(model)
    used = []
    real = one_row.through
    monkeypatch.setattr(one_row, "through", lambda *a: used.append(a[3].dtype) or real(*a))
    tokens = torch.randint(96, (1, 20), device="cuda")
    with torch.no_grad():
        full = model(tokens)
    state, rows = model.start(1, 64), []
    for t in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, t : t + 1], state)
        rows.append(logits)
    assert used == [torch.int8] * 20 * 2 * 4
    torch.testing.assert_close(torch.cat(rows, 1), full, rtol=1e-4, atol=1e-4)


def test_one_row_in_a_compiled_graph():
    """The same tokens as from the full pass, greedily."""
    from regard.generate.cuda_graph import GraphedStep

    torch.manual_seed(0)
    sizes = {"vocabulary": 96, "context": 64, "layers": 2, "heads": 4, "width": 128, "zero_init": False}
    model = load(GPTConfig, {**sizes, "feedforward": "swiglu", "kv_heads": 2}).build().cuda().eval()
    state = model.start(1, 64, fixed=True)
    graphed = GraphedStep(model, state, lambda logits: logits.argmax(-1))
    text = torch.randint(96, (1, 10), device="cuda")
    logits, _ = model.step(text, state)
    graphed.token.copy_(logits[:, -1].argmax(-1)[:, None])
    for _ in range(30):
        text = torch.cat((text, graphed.token), 1)
        graphed()
    with torch.no_grad():
        expected = model(text)[:, 9:-1].argmax(-1)
    assert torch.equal(text[:, 10:], expected)
