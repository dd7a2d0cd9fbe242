"""On a GPU every backend agrees with the reference in float64, forward and backward, biases' tables included."""

import pytest
import torch

from regard.attention import (
    Alibi,
    BackendRefused,
    Blocks,
    Causal,
    Chain,
    Dilated,
    Full,
    Global,
    Packed,
    Padded,
    Plan,
    Prefix,
    Range,
    Relative,
    Same,
    Slots,
    SoftCap,
    Softmax,
    Strided,
    Window,
    WindowConfig,
    attend,
)
from regard.attention.backends.flex import Flex
from regard.attention.masks.patterns import Chunks, Columns, Scattered, Sinks
from regard.models import GPTConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler has warnings of its own
]
CUDA = "cuda"
B, H, G, N, D = 2, 4, 2, 300, 64

MASKS = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Window(50),
    "dilated": Dilated(20, 3, ahead=2),
    "strided": Causal() & (Strided(16) | Window(16)),
    "prefix": Causal() | Prefix(40),
    "global": Global((0, 7)) | Window(9, 9),
    "not": ~Window(30, 30),
    "same": Same(torch.arange(N) % 3),
    "blocks": Blocks(torch.eye(10, dtype=torch.bool), 32),
    "nothing": ~Full(),
    "sinks": Causal() & (Window(30) | Sinks(4)),
    "fixed": Causal() & (Chunks(16) | Columns(16, 3)),
    "bigbird": Causal() & (Window(20) | Sinks(3, mutual=True) | Scattered.drawn(16, 2, seed=0)),
    "longformer": Window(20, 19) | Sinks(3, mutual=True),
    "far": Causal() & (Window(16) | Dilated(20, 12)),
}
SLOTS = {
    "range": lambda: Range(N),
    "padded": lambda: Padded(torch.tensor([170, 0], device=CUDA), N),
    "packed": lambda: Packed.of([[60, 100], [5, 290]], N, CUDA),
}
BIASES = {
    "none": lambda: None,
    "alibi": lambda: Alibi(H),
    "relative": lambda: Relative(H, 20),
    "cap": lambda: Chain(Relative(H, 9), SoftCap(5.0)),
}


def moved(mask):
    """The mask with its tensors on the GPU."""
    if isinstance(mask, Same):
        return Same(mask.labels.to(CUDA))
    return Blocks(mask.layout.to(CUDA), mask.size) if isinstance(mask, Blocks) else mask


def outcome(backend, mask, slots, bias, tensors, seed):
    """Values and gradients (of q, k, v and of the bias's parameters)."""
    mechanism = Softmax(bias=bias, backend=backend)
    plan = mechanism.plan(mask, slots, like=tensors[0])
    values = mechanism(*tensors, plan).values
    torch.manual_seed(seed)
    upstream = torch.randn(values.shape, dtype=torch.float64, device=CUDA).to(values.dtype)
    learned = [] if bias is None else list(bias.parameters())
    return [values, *torch.autograd.grad(values, [*tensors, *learned], upstream)]


# Each mask, each kind of slots with each bias: not every triple, since a FlexAttention kernel takes seconds to compile.
CASES = [
    ("full", "range", "relative"),
    ("full", "padded", "none"),
    ("causal", "packed", "alibi"),
    ("causal", "padded", "cap"),
    ("window", "range", "cap"),
    ("window", "packed", "none"),
    ("dilated", "padded", "relative"),
    ("strided", "range", "none"),
    ("prefix", "packed", "relative"),
    ("global", "range", "alibi"),
    ("not", "padded", "none"),
    ("same", "range", "none"),
    ("blocks", "packed", "none"),
    ("nothing", "range", "none"),
    ("sinks", "packed", "none"),
    ("fixed", "padded", "none"),
    ("bigbird", "packed", "none"),
    ("longformer", "range", "none"),
    ("far", "packed", "relative"),
]


REGROUPED = [
    ("strided", "range", "none"),
    ("strided", "packed", "relative"),
    ("fixed", "padded", "none"),
    ("far", "range", "alibi"),
]


@pytest.mark.parametrize(("mask_name", "slots_name", "bias_name"), REGROUPED)
def test_regrouped_tokens_agree_with_the_reference(mask_name, slots_name, bias_name, monkeypatch):
    monkeypatch.setattr("regard.attention.backends.flex.WIDE", 100)
    assert len(Flex().prepare(Plan(MASKS[mask_name], Range(N), Range(N), True), torch.device(CUDA))) == 2
    test_backends_agree_with_the_reference(mask_name, slots_name, bias_name)


def test_a_long_layout_is_small():
    """131,072 and 262,144 tokens, window 1024: blocks, not pairs."""
    for length in (2**17, 2**18):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        slots = Range(length)
        Flex().prepare(Plan(Causal() & Window(1024), slots, slots, True), torch.device(CUDA))
        assert torch.cuda.max_memory_allocated() - before < 2**30


@pytest.mark.parametrize(("mask_name", "slots_name", "bias_name"), CASES)
def test_backends_agree_with_the_reference(mask_name, slots_name, bias_name):
    torch.manual_seed(1)
    mask, slots = moved(MASKS[mask_name]), SLOTS[slots_name]()
    bias = BIASES[bias_name]()
    if bias is not None:
        bias = bias.to(CUDA).double()
        for parameter in bias.parameters():
            torch.nn.init.normal_(parameter)
    exact = [torch.randn(B, h, N, D, device=CUDA, dtype=torch.float64, requires_grad=True) for h in (H, G, G)]
    wanted = outcome("reference", mask, slots, bias, exact, 2)
    ran = 0
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        tensors = [x.detach().to(dtype).requires_grad_() for x in exact]
        narrow = None if bias is None else bias.to(torch.float32)
        for backend in ("sdpa", "banded", "flex"):
            try:
                got = outcome(backend, mask, slots, narrow, tensors, 2)
            except BackendRefused:
                continue
            ran += 1
            for one, two in zip(got, wanted, strict=True):
                error = (one.double() - two).norm() / two.norm().clamp(min=1e-3)
                assert error < tolerance, f"{backend} in {dtype}: {error}"
        if bias is not None:
            bias.double()
    assert ran >= 2


@pytest.mark.parametrize("options", [{}, {"attention": WindowConfig(40), "global_every": 2}, {"kv_heads": 2}])
def test_a_compiled_gpt_has_no_graph_break_and_the_same_numbers(options):
    torch.manual_seed(0)
    model = (
        GPTConfig(vocabulary=96, context=256, layers=2, heads=4, width=256, zero_init=False, **options).build().to(CUDA)
    )
    tokens = torch.randint(0, 96, (2, 256), device=CUDA)
    for slots in (None, Padded(torch.tensor([200, 256], device=CUDA), 256), Packed.of([[100, 156], [256]], 256, CUDA)):
        wanted = model(tokens, slots)
        found = torch.compile(model, fullgraph=True)(tokens, slots)
        real = slice(None) if not isinstance(slots, Padded) else slots.filled()
        assert torch.allclose(found[real], wanted[real], atol=2e-4)
        torch.compiler.reset()


def test_steps_equal_the_full_pass():
    torch.manual_seed(0)
    model = GPTConfig(vocabulary=96, context=128, layers=2, heads=4, width=128, zero_init=False).build().to(CUDA).eval()
    tokens = torch.randint(0, 96, (2, 100), device=CUDA)
    state = model.start(2, 128, fixed=True)
    pieces = []
    for piece in tokens.split([60, *[1] * 40], dim=1):
        logits, state = model.step(piece, state)
        pieces.append(logits)
    assert torch.allclose(torch.cat(pieces, 1), model(tokens), atol=2e-4)


@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(5), ~Causal()], ids=str)
def test_one_query_equals_the_reference(mask, width):
    """Over a memory that is partly empty, with shared key heads, and with a row that sees nothing."""
    torch.manual_seed(0)
    q = torch.randn(3, 4, 1, width, device=CUDA)
    k, v = torch.randn(2, 3, 2, 100, width, device=CUDA)
    order = torch.arange(100, device=CUDA).expand(3, -1)
    segment = torch.where(order < torch.tensor([[70], [100], [0]], device=CUDA), 0, -1)
    keys = Slots(order, segment, order)
    place = torch.tensor([[69], [99], [0]], device=CUDA)
    queries = Slots(place, torch.zeros_like(place), place)
    found = {}
    for backend in ("decode_gpu", "reference"):
        mechanism = Softmax(backend=backend)
        found[backend] = mechanism(q, k, v, mechanism.plan(mask, queries, keys, like=q)).values
    assert torch.allclose(found["decode_gpu"], found["reference"], atol=1e-5)
    assert not found["decode_gpu"][2].any()


@pytest.mark.parametrize("slots", [Packed.of([[3, 2], [4]]), Padded(torch.tensor([5, 2]), 5), Range(5)], ids=str)
@pytest.mark.parametrize("mask", [Causal(), Full(), Causal() & Same(torch.arange(5) % 2), Window(2)], ids=str)
def test_slots_and_masks_on_the_cpu_serve_tensors_on_the_gpu(slots, mask) -> None:
    x = torch.randn(2, 2, 5, 16)
    want = attend(x, x, x, mask, queries=slots).values
    got = attend(x.to(CUDA), x.to(CUDA), x.to(CUDA), mask, queries=slots).values
    torch.testing.assert_close(got.cpu(), want, atol=1e-2, rtol=1e-2)
