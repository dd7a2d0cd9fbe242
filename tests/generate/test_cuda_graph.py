"""A decoding step as a CUDA graph writes what eager steps write."""

from typing import Any

import pytest
import torch

from regard.attention import WindowConfig
from regard.generate import BeamSearch, BeamSearcher, CachedLanguageModel, Decoder, OutputConstraints, Sampling
from regard.generate import sampling_decoder as decoder
from regard.generate.cuda_graph import GraphedStep, reset_state
from regard.models import ConvolutionConfig, GPTConfig, RecurrentConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler has warnings of its own
]
CUDA = "cuda"


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "ngrams": 2}, {"attention": WindowConfig(20)}])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_graph_of_one_step_writes_what_eager_steps_write(options, compiled):
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=96, context=128, layers=2, heads=4, width=128, zero_init=False, **options)
    model = config.build().to(CUDA).eval()
    state = model.start(2, 128, fixed=True)
    graphed = GraphedStep(model, state, lambda logits: logits.argmax(-1), compiled=compiled)
    prompt = torch.randint(0, 96, (2, 30), device=CUDA)
    for _ in range(2):  # a state that was emptied is as good as new
        reset_state(state)
        logits, _ = model.step(prompt, state)
        graphed.token.copy_(logits[:, -1].argmax(-1)[:, None])
        written = []
        for _ in range(40):
            graphed()
            written.append(graphed.token.clone())
        eager = model.start(2, 128)
        logits, eager = model.step(prompt, eager)
        token = logits[:, -1].argmax(-1)[:, None]
        for one in written:
            logits, eager = model.step(token, eager)
            token = logits[:, -1].argmax(-1)[:, None]
            assert torch.equal(one, token)


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "ngrams": 3}, {"attention": WindowConfig(20)}])
def test_decoding_by_graphs_writes_the_same_text(options):
    """Ragged prompts, rows that fill the context at different times, and draws."""
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=96, context=64, layers=2, heads=4, width=128, zero_init=False, **options)
    model = config.build().to(CUDA).eval()
    prompts = [[1, 2, 3], list(range(50)), [7] * 20]
    for sampling in (Sampling(0.0), Sampling(1.0, top_k=5)):
        rows, eager = (
            torch.stack(list(decoder(model, prompts, 100, sampling, graphs=graphs))) for graphs in (True, False)
        )
        assert torch.equal(rows, eager)


SIZES: Any = {"vocabulary": 96, "context": 64, "layers": 2, "width": 128}
CONFIGS = [
    GPTConfig(**SIZES, heads=4, zero_init=False),
    RecurrentConfig(**SIZES, cell="lstm"),
    RecurrentConfig(**SIZES, cell="gru"),
    ConvolutionConfig(**SIZES),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
@pytest.mark.parametrize("compiled", [False, True])
def test_every_language_model_decodes_on_a_gpu(config, compiled):
    """By a graph where the model can be captured, else eagerly; more tokens than the least for a graph."""
    torch.manual_seed(0)
    model = config.build().to(CUDA).eval()
    prompts = [[1, 2, 3], list(range(50))]
    rows, eager = (
        torch.stack(list(decoder(model, prompts, 40, Sampling(0.0), graphs=graphs, compiled=compiled and graphs)))
        for graphs in (True, False)
    )
    assert torch.equal(rows, eager)


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "ngrams": 3}, {"attention": WindowConfig(20)}])
def test_beam_search_by_graphs_finds_the_same_texts(options):
    """Beams that move between rows of a state at fixed addresses, and prompts that leave."""
    torch.manual_seed(0)
    model = GPTConfig(**SIZES, heads=4, zero_init=False, **options).build().to(CUDA).eval()
    prompts = [[1, 2, 3], list(range(50)), [7] * 20, [1, 2, 3]]
    found = []
    for graphs in (True, False):
        searcher = BeamSearcher(BeamSearch(4), OutputConstraints(40, end=5), 4)
        for _ in Decoder(CachedLanguageModel(model, prompts, 40, graphs=graphs), searcher, 40):
            pass
        found.append([[one.tokens for one in prompt] for prompt in searcher.hypotheses()])
    assert found[0] == found[1]
