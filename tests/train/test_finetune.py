"""Fine-tuning: where weights come from, which are trained, early stopping, and the whole way to a prediction."""

import json
from dataclasses import replace

import pytest
import torch
from train_kit import newest, run_whole, same, start, weights

from regard.cli import main
from regard.data import BytesConfig, ClassesConfig, TextConfig
from regard.errors import UserError
from regard.models import EncoderConfig
from regard.nn.heads import ClassesHeadConfig
from regard.tasks import ClassificationConfig, MaskedTokensConfig
from regard.train import AdamWConfig, Experiment, TrainConfig, train
from regard.train.adapt import FrozenConfig, LayerwiseConfig, depths
from regard.train.pretrained import pretrained

MODEL = EncoderConfig(context=16, layers=2, heads=2, width=16, dropout=0.1)
TRAIN = TrainConfig(steps=6, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=2, save_every=3, device="cpu")


@pytest.fixture
def labeled(tmp_path):
    """Texts whose class is a letter that occurs in them."""
    lines = [{"text": f"text {'ab'[n % 2] * 3} {n}", "label": "ab"[n % 2]} for n in range(80)]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path, text):
    """A run pretrained on masked bytes."""
    data = TextConfig(path=str(text), batch=4, tokenizer=BytesConfig())
    return run_whole(tmp_path, Experiment(MODEL, data, MaskedTokensConfig(), replace(TRAIN, steps=2)), "base")


def experiment(labeled, base=None, **training) -> Experiment:
    data = ClassesConfig(path=str(labeled), validation=0.2, test=0.1, batch=128, tokenizer=BytesConfig())
    init = None if base is None else str(base.path)
    return Experiment(MODEL, data, ClassificationConfig(), replace(TRAIN, **training), init=init)


def test_training_starts_from_the_weights_of_a_run_with_a_new_head(tmp_path, labeled, base):
    still = AdamWConfig(lr=0.0, weight_decay=0.0)
    run = run_whole(tmp_path, experiment(labeled, base, optimizer=still, steps=1))
    before, after = weights(base), weights(run)
    kept = [name for name in after if name in before and before[name].shape == after[name].shape]
    assert "embed.weight" in kept
    assert "blocks.1.attention.out.weight" in kept
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert sorted(set(after) - set(kept)) == [
        "transform.dense.bias",
        "transform.dense.weight",
        "unembed.bias",
        "unembed.weight",
    ]
    config = run.load(Experiment)
    assert isinstance(config.model, EncoderConfig)
    assert config.model.head == ClassesHeadConfig(2, ("a", "b"), pool="cls", dense="tanh")
    assert config.init == str(base.path)


def test_a_resumed_fine_tuning_repeats_the_whole_one(tmp_path, labeled, base):
    wanted = experiment(labeled, base)
    whole = run_whole(tmp_path, wanted)
    part = start(tmp_path, wanted, "part")
    train(replace(wanted, train=replace(wanted.train, steps=6)), part)
    for folder in (part.path / "checkpoints").glob("step-000006"):
        for file in sorted(folder.rglob("*")):
            file.unlink()
        folder.rmdir()
    base.path.rename(base.path.with_name("moved"))  # it is not needed any more
    train(part.load(Experiment), part, resume=True)
    assert same(weights(whole), weights(part))


def test_frozen_parameters_stay_and_others_move(tmp_path, labeled, base):
    before = weights(base)
    head = weights(run_whole(tmp_path, experiment(labeled, base, adapt=FrozenConfig()), "head"))
    assert all(torch.equal(before[name], head[name]) for name in before if name != "unembed.weight")
    upper = weights(
        run_whole(tmp_path, experiment(labeled, base, adapt=FrozenConfig(("blocks.1", "norm", "unembed"))), "upper")
    )
    moved = {name for name in before if name != "unembed.weight" and not torch.equal(before[name], upper[name])}
    assert moved
    assert all(name.startswith(("blocks.1.", "norm.")) for name in moved)


def test_each_layer_has_its_own_rate():
    model = replace(MODEL, head=ClassesHeadConfig()).build()
    rates = LayerwiseConfig(decay=0.5).rates(model)
    named = dict(model.named_parameters())
    assert rates[named["embed.weight"]] == 0.125
    assert rates[named["blocks.0.attention.out.weight"]] == 0.25
    assert rates[named["unembed.weight"]] == 1.0
    optimizer = AdamWConfig(lr=1e-3, weight_decay=0.0).build(model, rates)
    assert {id(parameter) for parameter in optimizer.parameters} == {id(parameter) for parameter in model.parameters()}
    for group in optimizer.groups:
        assert all(group["lr"] == pytest.approx(1e-3 * rates[parameter]) for parameter in group["params"])
    assert sorted(set(depths(model).values())) == [0, 1, 2, 3]


def test_the_head_may_learn_faster_and_the_lowest_layers_not_at_all(tmp_path, labeled, base):
    model = replace(MODEL, head=ClassesHeadConfig(dense="tanh")).build()
    config, named = LayerwiseConfig(decay=0.5, head=5.0, freeze=2), dict(model.named_parameters())
    rates = config.rates(model)
    assert {rates[one] for name, one in named.items() if name.startswith(("unembed", "transform"))} == {5.0}
    assert rates[named["blocks.1.attention.out.weight"]] == 0.5
    before = weights(base)
    run = run_whole(tmp_path, experiment(labeled, base, adapt=config), "upper")
    after = weights(run)
    moved = {name for name in after if name in before and not torch.equal(before[name], after[name])}
    assert {name.partition(".")[0] for name in moved} >= {"blocks", "unembed"}
    assert all(name.startswith(("blocks.1.", "norm.", "unembed.")) for name in moved)
    with pytest.raises(UserError, match="choose 3 or less"):
        LayerwiseConfig(freeze=4).apply(model)
    for adapt in (config, FrozenConfig()):
        with pytest.raises(UserError, match="would keep random weights"):
            experiment(labeled, adapt=adapt).checked()


def test_a_pretrained_model_gets_another_dropout(tmp_path, labeled, base):
    for given, expected in ((None, 0.1), (0.0, 0.0)):
        run = run_whole(tmp_path, experiment(labeled, base, steps=1, dropout=given), f"dropout-{given}")
        config = run.load(Experiment).model
        assert isinstance(config, EncoderConfig)
        assert config.dropout == expected
        assert config.attention_dropout == given
        assert max(one.p for one in config.build().modules() if isinstance(one, torch.nn.Dropout)) == expected


def test_early_stopping_ends_with_the_best_weights(tmp_path, labeled):
    calm = experiment(labeled, steps=40, evaluate_every=1, patience=3, save_every=None)
    run = run_whole(tmp_path, replace(calm, train=replace(calm.train, optimizer=AdamWConfig(lr=0.0))), "calm")
    assert newest(run).step == 4  # the first evaluation is the best, and three are no better
    learning = run_whole(
        tmp_path, experiment(labeled, steps=30, evaluate_every=1, patience=5, save_every=None), "learn"
    )
    scores = [one["validation_accuracy"] for one in learning.metrics() if "validation_accuracy" in one]
    assert main(["evaluate", str(learning.path), "--json", "--device", "cpu"]) == 0
    assert max(scores) >= scores[0]


def test_a_run_without_init_has_no_other_weights(tmp_path, labeled):
    with pytest.raises(UserError, match="no run, model or folder"):
        pretrained("nowhere")
    assert run_whole(tmp_path, experiment(labeled, steps=1)).load(Experiment).init is None


def test_the_way_from_a_file_to_a_prediction(tmp_path, labeled, base, capsys):
    options = ["--runs", str(tmp_path), "--data.path", str(labeled), "--init", str(base.path), "--train.steps", "60"]
    further = ["--train.evaluate_every", "30", "--data.batch", "512", "--train.optimizer.lr", "1e-2"]
    names = ["--data.names", "", "--task.pool", "mean", "--data.validation", "0.2"]
    assert main(["train", "sentiment", "--name", "tuned", *options, *further, *names]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "tuned"), "--part", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    assert main(["predict", str(tmp_path / "tuned"), "some aaa", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"][0]
    assert found["label"] == "a"
    assert main(["predict", str(tmp_path / "tuned"), "some aaa " * 20, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["label"] == "a"
    assert sum(found["probabilities"].values()) == pytest.approx(1.0)
    assert main(["predict", str(tmp_path / "tuned")]) == 2
