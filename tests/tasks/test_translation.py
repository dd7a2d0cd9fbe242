"""The translation loss: a sum over real target tokens, smoothed in training only."""

from typing import Any

import pytest
import torch

from regard.config import load
from regard.data import PairBatch
from regard.errors import UserError
from regard.models import Seq2SeqConfig, TransformerConfig
from regard.tasks import Task, TaskConfig, TranslationConfig, TranslationTask
from regard.train.engine import compiles

SIZES: dict[str, Any] = {"vocabulary": 23, "context": 8, "layers": 1, "width": 16, "dropout": 0.0}


def batch() -> PairBatch:
    tokens = torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[1, 2:] = -1
    return PairBatch(tokens[:, :5], torch.tensor([5, 3, 4]), tokens[:, :-1], targets)


def models():
    torch.manual_seed(0)
    yield TransformerConfig(**SIZES, heads=2).build().double()
    yield Seq2SeqConfig(**SIZES).build().double()


def by_hand(model, pairs: PairBatch, smoothing: float) -> torch.Tensor:
    """(1 - e) log p(target) + e mean over the vocabulary (Szegedy et al. 2016, sec. 7)."""
    logs = model(pairs.inputs, pairs.source, pairs.source_lengths).log_softmax(-1)
    told = logs.gather(-1, pairs.targets.clamp(min=0)[..., None])[..., 0]
    mixed = (1 - smoothing) * told + smoothing * logs.mean(-1)
    return -(mixed * (pairs.targets >= 0)).sum()


@pytest.mark.parametrize("model", list(models()), ids=["transformer", "seq2seq"])
def test_the_loss_is_smoothed_in_training_and_a_likelihood_in_evaluation(model):
    task, pairs = TranslationTask(TranslationConfig(smoothing=0.3)), batch()
    for training, smoothing in ((True, 0.3), (False, 0.0)):
        model.train(training)
        term = task.terms(model, pairs)["next_token"]
        torch.testing.assert_close(term.total, by_hand(model, pairs, smoothing), rtol=1e-12, atol=1e-12)
        assert int(term.count) == int(task.counts(pairs)["next_token"]) == 14


@pytest.mark.parametrize("model", list(models()), ids=["transformer", "seq2seq"])
def test_chunks_of_logits_change_nothing(model):
    pairs = batch()
    whole = TranslationTask(TranslationConfig()).terms(model, pairs)["next_token"].total
    cut = TranslationTask(TranslationConfig(logits=50)).terms(model, pairs)["next_token"].total
    torch.testing.assert_close(whole, cut, rtol=1e-12, atol=1e-12)


def test_a_config_names_it_and_refuses_what_is_no_share():
    task: Task = load(TaskConfig, {"kind": "translation", "smoothing": 0.0}).build()
    assert isinstance(task, TranslationTask)
    with pytest.raises(UserError, match="smoothing"):
        load(TaskConfig, {"kind": "translation", "smoothing": 1.0})


def test_what_cannot_be_compiled_says_so():
    """By default it is left uncompiled; asked for by name, it is an error."""
    recurrent = Seq2SeqConfig(**SIZES).build()
    transformer = TransformerConfig(**SIZES, heads=2).build()
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert not compiles("auto", transformer, True, cuda)  # it would compile for longer than it trains
    assert compiles("auto", transformer, False, cuda)
    assert not compiles("auto", transformer, True, cpu)
    assert compiles(True, transformer, True, cpu)
    assert not compiles("auto", recurrent, True, cuda)
    with pytest.raises(UserError, match="Seq2Seq cannot be compiled"):
        compiles(True, recurrent, True, cpu)
    with pytest.raises(UserError, match="one shape"):
        compiles("graphs", transformer, True, cuda)
