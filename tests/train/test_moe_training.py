"""Training with experts: their losses are weighed alike however an update is cut, and never reach an evaluation."""

from dataclasses import replace

import pytest
import torch
from test_shard import _ranks as run_ranks
from torch import nn
from train_kit import MODEL, TRAIN, RowsConfig, experiment, run_whole, same, start, weights

from regard.errors import UserError
from regard.nn.auxiliary_loss import AuxiliaryLoss, AuxiliaryLossLayer, collect
from regard.nn.experts.moe import MoEConfig
from regard.parallel.world import World
from regard.recipes import get
from regard.train import Experiment, MuonConfig, train
from regard.train.engine import Engine
from regard.train.evaluate import evaluate

EXPERTS = MoEConfig(ratio=1.0, experts=4, shared=1, balance=0.3, z=0.2)
SPARSE = replace(MODEL, vocabulary=13, dropout=0.0, feedforward=EXPERTS)


def _engine(batch: int, accumulate: int = 1, model=SPARSE, **training) -> Engine:
    wanted = Experiment(model, RowsConfig(batch=batch), train=replace(TRAIN, accumulate=accumulate, **training))
    engine = Engine(wanted, wanted.data.build(8), World())
    engine.model.double()
    return engine


def test_the_loss_is_the_tasks_plus_the_layers_means_over_micro_batches():
    engine = _engine(4, accumulate=3)
    model, batches = engine.model, [engine.batch(number) for number in range(3)]
    terms = [engine.task.terms(model, batch) for batch in batches]
    counts = sum(int(one["next_token"].count) for one in terms)
    plain = sum(float(one["next_token"].total.detach()) for one in terms) / counts
    balance, z = (sum(float(one[name].total.detach()) for one in terms) / 3 for name in ("balance", "z"))
    assert all(not one["balance"].additive and one["balance"].weight == 0.3 for one in terms)
    update = engine.update()
    assert update.loss == pytest.approx(plain + 0.3 * balance + 0.2 * z, abs=1e-12)
    assert update.terms == pytest.approx({"next_token": plain, "balance": balance, "z": z}, abs=1e-12)
    shares = engine.details()["expert_share"]
    assert [round(sum(layer), 3) for layer in shares] == [1.0, 1.0]
    assert [len(layer) for layer in shares] == [4, 4]


def test_the_gradient_has_the_layers_part():
    with_losses, without = _engine(4), _engine(4, model=replace(SPARSE, feedforward=replace(EXPERTS, balance=0, z=0)))
    with_losses.update()
    without.update()
    router = "blocks.0.feedforward.router.weight"
    a, b = (engine.model.get_parameter(router).grad for engine in (with_losses, without))
    assert a is not None
    assert b is not None
    assert not torch.allclose(a, b)


def test_rows_that_are_cut_or_not_give_the_same_update_without_such_losses():
    silent = replace(SPARSE, feedforward=replace(EXPERTS, balance=0.0, z=0.0))
    whole, cut = _engine(16, model=silent), _engine(4, 4, model=silent)
    for _ in range(2):
        assert cut.update().loss == pytest.approx(whole.update().loss, abs=1e-12)
    for p, q in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-12)


def test_evaluation_is_the_plain_cross_entropy():
    engine = _engine(16)
    (batch,) = engine.data.validation_batches(16)
    measures = evaluate(engine)
    logits = engine.model(batch.inputs)
    plain = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-1)
    assert measures == {"validation_loss": pytest.approx(plain.item(), abs=1e-12)}


@pytest.mark.parametrize("repeat", [1, 2])
def test_recomputed_blocks_tell_once_and_change_nothing(repeat):
    model = replace(SPARSE, repeat=repeat)
    plain, recomputed = _engine(4, model=model), _engine(4, model=model, checkpointing=True)
    for _ in range(2):
        a, b = plain.update(), recomputed.update()
        assert a == b
    assert len(recomputed.details()["expert_share"]) == 2  # layers, whether they share a block or not
    assert all(layer.recorded == () for layer in recomputed.auxiliary_layers)
    for p, q in zip(plain.model.parameters(), recomputed.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.filterwarnings("default")  # torch's compiler has warnings of its own
@pytest.mark.parametrize(("checkpointing", "capacity"), [(False, None), (True, 0.8)])
def test_the_whole_loss_traces_as_one_graph(checkpointing, capacity):
    model = replace(SPARSE, layers=1, feedforward=replace(EXPERTS, capacity=capacity))
    engine = _engine(4, model=model, checkpointing=checkpointing)
    batch = engine.batch(0)

    def gradients(terms):
        found = terms(engine.model, batch)
        loss = torch.stack([term.total * term.weight for term in found.values()]).sum()
        return [loss, *torch.autograd.grad(loss, list(engine.model.parameters()), allow_unused=True)], found

    wanted, one = gradients(engine.task.terms)
    compiled = torch.compile(engine.task.terms, fullgraph=True, dynamic=False, backend="aot_eager")
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):  # as `Engine` sets it
        got, two = gradients(compiled)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert one.keys() == two.keys() == {"next_token", "balance", "z"}
    torch.testing.assert_close(two["next_token"].details, one["next_token"].details)


@pytest.mark.parametrize("capacity", [None, 0.5])
def test_a_run_records_its_experts_and_resumes_bit_for_bit(text, tmp_path, capacity):
    wanted = experiment(text, {"feedforward": replace(EXPERTS, capacity=capacity)}, optimizer=MuonConfig())
    whole = run_whole(tmp_path, wanted)
    for record in whole.metrics():
        if "loss" not in record:
            assert record.keys() == {"step", "validation_loss"}
            continue
        assert record["loss"] == pytest.approx(record["next_token"] + 0.3 * record["balance"] + 0.2 * record["z"])
        assert record["balance"] >= 2 * 0.9  # two layers, near 1 each at the least
        assert [len(layer) for layer in record["expert_gate"]] == [4, 4]
        assert ("expert_dropped" in record) == (capacity is not None)
    cut = start(tmp_path, wanted, "cut")
    train(wanted, cut)
    (cut.path / "checkpoints" / "step-000008").rename(tmp_path / "away")
    train(wanted, cut, resume=True)
    assert same(weights(cut), weights(whole))


def test_a_loss_that_cannot_teach_is_an_error():
    class Blind(nn.Module):
        """Runs its layer as a reversible block does: without a record for the backward pass."""

        def __init__(self):
            super().__init__()
            self.layer = Teller()

        def forward(self, x):
            with torch.no_grad():
                return self.layer(x)

    class Teller(AuxiliaryLossLayer):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            self.record(AuxiliaryLoss({"balance": (1.0, self.scale * x.mean())}, {}))
            return x

    model, x = Blind(), torch.ones(2)
    with pytest.raises(UserError, match=r"--model\.feedforward\.balance 0"):
        collect(model, lambda: model(x))
    with torch.no_grad():
        assert len(collect(model, lambda: model(x))[1]) == 1


def test_many_that_recompute_are_not_compiled():
    wanted = Experiment(SPARSE, RowsConfig(), train=replace(TRAIN, checkpointing=True, compile=True))
    with pytest.raises(UserError, match="set compile to auto"):
        Engine(wanted, wanted.data.build(8), World(0, 2))


def test_the_recipe_is_whole():
    model = get("shakespeare-moe").checked().model
    assert model.feedforward.kind == "moe"  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_ranks_train_as_one_process_does(tmp_path, checkpointing):
    """Two ranks with two micro-batches each have the same four pieces as one process with four."""

    def wanted(accumulate: int) -> Experiment:
        training = replace(TRAIN, accumulate=accumulate, checkpointing=checkpointing)
        return Experiment(SPARSE, RowsConfig(batch=4), train=training)

    one, two = run_whole(tmp_path, wanted(4), "one"), start(tmp_path, wanted(2), "two")
    run_ranks(two)
    ours, theirs = weights(one), weights(two)
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=0, atol=2e-5, msg=name)
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() & {"loss", "balance", "z", "validation_loss", "grad_norm"}:
            assert a[key] == pytest.approx(b[key], abs=1e-4)
        torch.testing.assert_close(a.get("expert_share"), b.get("expert_share"), rtol=0, atol=2e-3)
