"""Laws over every registered model, and over one that is defined outside the package.

They are the contract of ``regard/models/base.py``, as the rest of the library relies on it.
"""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path

import pytest
import torch
from model_kit import ARRAYS, DECODABLE, MODELS, build, gradients, inputs, kinds_of, loss
from safetensors.torch import load_file
from torch import nn

from forked_ranks import run_ranks
from regard.attention import Bias, Mechanism, Packed, Padded
from regard.config.choice import kinds
from regard.errors import UserError
from regard.generate import Sampling, sampling_decoder
from regard.look import attentions
from regard.models import ArrayEncoder, Encoder, LanguageModel, Model, ModelConfig, Seq2SeqModel, describe
from regard.prove import all_claims, certify
from regard.train import MuonConfig

NAMES = list(MODELS)
LANGUAGE = kinds_of(LanguageModel)
READERS = LANGUAGE + kinds_of(Encoder)  # models of one sequence of tokens
OF_TOKENS = [name for name in NAMES if name not in ARRAYS]


def test_every_registered_model_is_here() -> None:
    registered = {kind for kind, config in kinds(ModelConfig).items() if config.__module__.startswith("regard.")}
    assert {config.kind for config in MODELS.values()} >= registered


def test_every_mechanism_of_the_package_is_in_a_model() -> None:
    def below(cls: type[Mechanism]) -> set[type[Mechanism]]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    used = {type(mechanism) for name in MODELS for _, mechanism in build(name).mechanisms()}
    defined = {cls for cls in below(Mechanism) - {Mechanism} if cls.__module__.startswith("regard.")}
    defined = {cls for cls in defined if not inspect.isabstract(cls)}
    assert defined <= used, "add a model with it to MODELS in model_kit.py"


@pytest.mark.parametrize("name", NAMES)
def test_it_declares_itself(name: str) -> None:
    model = build(name)
    assert isinstance(model, LanguageModel | Encoder | ArrayEncoder | Seq2SeqModel)
    assert model.config == MODELS[name]
    blocks = list(model.blocks)
    assert blocks
    assert all(isinstance(block, nn.Module) for block in blocks)
    inside, everything = {p for block in blocks for p in block.parameters()}, set(model.parameters())
    assert inside
    assert inside < everything
    for flag in ("compilable", "graphable", "positional", "carries_state", "checkpointing"):
        assert type(getattr(model, flag)) is bool
    assert model.limit is None or model.limit >= model.config.context


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns(name: str) -> None:
    model = build(name)
    names = {name for name, _ in model.named_parameters() if name.partition(".")[0] not in model.separate}
    assert gradients(model, inputs(model)).keys() == names


def saved_bytes(model: Model) -> int:
    """The bytes that a forward pass stores for the backward pass."""
    stored: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        stored[x.data_ptr()] = x.nbytes
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss(model.train(), inputs(model))
    return sum(stored.values())


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_stores_less_and_changes_no_gradient(name: str) -> None:
    plain, again = build(name), build(name)
    again.checkpointing = True
    batch = inputs(plain)
    want, found = gradients(plain, batch), gradients(again, batch)
    assert found.keys() == want.keys()
    for key in want:
        torch.testing.assert_close(found[key], want[key], rtol=1e-9, atol=1e-9, msg=key)
    if "reversible" not in name and name != "dlinear":  # which store nothing inside their blocks in any case
        assert saved_bytes(again) < saved_bytes(plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_equals_the_eager_one_or_is_declared_impossible(name: str) -> None:
    model = build(name, torch.float32)
    if not model.compilable:
        pytest.skip("declares compilable = False")
    batch = inputs(model)
    other = copy.deepcopy(model)
    torch._dynamo.reset()
    want = gradients(model, batch)
    torch.manual_seed(5)
    torch.compile(loss, fullgraph=True)(other.train(), batch).backward()
    for key, parameter in other.named_parameters():
        torch.testing.assert_close(parameter.grad, want[key], rtol=1e-3, atol=1e-3, msg=key)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(Path(__file__).with_name("model_ranks.py"), 2, folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_give_the_gradients_of_one_process_or_refuse(name: str, two_ranks: Path) -> None:
    if (error := two_ranks / f"{name}.error").exists():
        pytest.fail(error.read_text())
    if (refusal := two_ranks / f"{name}.refusal").exists():
        assert len(refusal.read_text()) > 20
        assert name in ("gpt reversible", "encoder reversible")
        return
    model = build(name)
    want, found = gradients(model, inputs(model)), load_file(two_ranks / f"{name}.safetensors")
    assert found.keys() == want.keys()
    for key in want:
        torch.testing.assert_close(found[key], want[key], rtol=1e-8, atol=1e-8, msg=key)


@pytest.mark.parametrize("name", DECODABLE)
def test_steps_equal_the_full_pass(name: str) -> None:
    model = build(name).eval()
    tokens, *source = inputs(model).arguments
    with torch.no_grad():
        want = model(tokens, *source)
    more = {"source": source[0], "source_lengths": source[1]} if source else {}
    state = model.start(len(tokens), tokens.shape[1], **more)
    found = []
    for first, last in ((0, 5), (5, 6), (6, 12)):
        logits, state = model.step(tokens[:, first:last], state)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), want, rtol=1e-8, atol=1e-8)
    assert state.used == tokens.shape[1]


@pytest.mark.parametrize("name", [name for name in DECODABLE if name in LANGUAGE])
def test_ragged_steps_equal_each_row_alone(name: str) -> None:
    model = build(name).eval()
    tokens, lengths = inputs(model).arguments[0], torch.tensor([7, 1, 4, 0])
    state = model.start(4, 12)
    first, state = model.step(tokens[:, :7], state, lengths, last=True)
    second, state = model.step(tokens[:, 7:8], state)
    for row, length in enumerate(lengths.tolist()):
        alone = torch.cat((tokens[row : row + 1, :length], tokens[row : row + 1, 7:8]), 1)
        with torch.no_grad():
            want = model(alone)[0]
        if length:
            torch.testing.assert_close(first[row, 0], want[-2], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(second[row, 0], want[-1], rtol=1e-8, atol=1e-8)
    assert state.position.tolist() == (lengths + 1).tolist()


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_padded_row_equals_the_row_alone(name: str) -> None:
    model = build(name).eval()
    if not all(mechanism.batch_invariant for _, mechanism in model.mechanisms()):
        pytest.skip("a mechanism declares batch_invariant = False")
    tokens, *source = inputs(model).arguments
    lengths = torch.tensor([12, 3, 7, 1])
    with torch.no_grad():
        found = model(tokens, *source) if source else model(tokens, Padded(lengths, 12))
        for row, length in enumerate(lengths.tolist()):
            alone = [tokens[row : row + 1, :length]]
            if source:
                end = int(source[1][row])
                alone += [source[0][row : row + 1, :end], source[1][row : row + 1]]
            torch.testing.assert_close(found[row, :length], model(*alone)[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", READERS)
def test_packed_documents_equal_each_alone_or_are_refused(name: str) -> None:
    model = build(name).eval()
    tokens = inputs(model).arguments[0]
    documents = ((5, 7), (12,), (1, 4, 6), (3, 9))
    with torch.no_grad():
        try:
            found = model(tokens, Packed.of(documents))
        except UserError:  # a mechanism refuses packed rows, in words
            return
        for row, lengths in enumerate(documents):
            begin = 0
            for length in lengths:
                piece = slice(begin, begin + length)
                torch.testing.assert_close(
                    found[row, piece], model(tokens[row : row + 1, piece])[0], rtol=1e-8, atol=1e-8
                )
                begin += length


@pytest.mark.parametrize("name", NAMES)
def test_muon_gets_exactly_the_hidden_matrices(name: str) -> None:
    model = build(name, torch.float32)
    hidden = set(model.hidden_matrices())
    tables = {p for module in model.modules() if isinstance(module, Bias | nn.Embedding) for p in module.parameters()}
    expected = set()
    for block in model.blocks:
        expected |= {parameter for parameter in block.parameters() if parameter.ndim == 2 and parameter not in tables}
    assert hidden == expected
    if name in ("image cnn", "efficientnet"):  # whose weights are kernels of convolutions: AdamW optimizes them
        return
    assert hidden
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            assert module.weight not in hidden
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    assert {name for name, p in model.named_parameters() if p in hidden} == {
        name
        for name in matrices
        if not re.match(
            r"((image|text|encoder|decoder)\.)*((un)?embed|source_embed|ngrams|of_deviation|position|transform)", name
        )
        and "table" not in name
        and name.partition(".")[0] not in model.separate
    }
    muon, rest = MuonConfig().build(model).parts
    assert {p for group in muon.param_groups for p in group["params"]} == hidden
    assert {p for group in rest.param_groups for p in group["params"]} == set(model.parameters()) - hidden


@pytest.mark.parametrize("name", NAMES)
def test_describe_counts_it(name: str) -> None:
    found, model = describe(MODELS[name]), build(name)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    distinct = {p for block in model.blocks for p in block.parameters()}
    assert found["parameters_in_blocks"] == sum(p.numel() for p in distinct)
    assert found["flops_per_token"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_prove_finds_nothing(name: str) -> None:
    claims = [claim for claim in all_claims() if claim != "export"]
    certificate = certify(build(name, torch.float32), length=12, claims=claims)
    assert not certificate.failed, certificate


#: One model of each kind whose graph is traced in a second.
TRACED = (
    "gpt topk",
    "gpt relative",
    "lstm",
    "convolution",
    "transformer",
    "encoder",
    "vit",
    "seq2seq fixed",
    "outside",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in TRACED else pytest.mark.slow) for n in NAMES])
def test_export_keeps_the_logits(name: str) -> None:
    certificate = certify(build(name, torch.float32), length=12, claims=["export"])
    assert not certificate.failed, certificate


@pytest.mark.parametrize("name", NAMES)
def test_look_sees_the_attention_that_it_declares(name: str) -> None:
    model = build(name, torch.float32)
    batch = inputs(model)
    found = {one.name for one in attentions(model, lambda: model(*batch.arguments))}
    observable = {path for path, mechanism in model.mechanisms() if mechanism.unobservable is None}
    assert found == observable


@pytest.mark.gpu
@pytest.mark.parametrize("name", LANGUAGE)
def test_generation_on_a_gpu_equals_the_full_pass(name: str) -> None:
    """Sixteen tokens, captured as a CUDA graph where the model declares that it can be."""
    model = build(name, torch.float32).cuda().eval()
    if not model.decodable:
        pytest.skip("declares decodable = False")
    prompt = inputs(model, rows=1, length=4).arguments[0][0].tolist()
    written = [int(step[0]) for step in sampling_decoder(model, [prompt], 16, Sampling(0.0))]
    text = torch.tensor([[*prompt, *written]], device="cuda")
    with torch.no_grad():
        logits = model(text)[0, 3:-1]
    best = logits.max(-1).values
    chosen = logits.gather(1, text[0, 4:, None])[:, 0]
    assert (best - chosen).max() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_a_gpu_equals_the_cpu(name: str) -> None:
    model = build(name)
    batch = inputs(model)
    want = gradients(model, batch)
    other = build(name).cuda()
    found = gradients(
        other, batch._replace(arguments=tuple(x.cuda() for x in batch.arguments), targets=batch.targets.cuda())
    )
    for key in want:
        torch.testing.assert_close(found[key].cpu(), want[key], rtol=1e-6, atol=1e-6, msg=key)


def test_a_model_outside_the_contract_is_refused() -> None:
    class Loose(ModelConfig):
        vocabulary, context, layers, width = 3, 4, 1, 2

        def make(self) -> Model:
            return nn.Linear(2, 2)  # type: ignore[return-value]

    with pytest.raises(TypeError, match="return a LanguageModel, an Encoder, an ArrayEncoder or a Seq2SeqModel"):
        Loose().build()
