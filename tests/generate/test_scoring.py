"""Log-probabilities of choices against brute force in float64, and contextual calibration against its formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.cli import main
from regard.data import TextConfig
from regard.data.tokenizers.bytes import BytesConfig
from regard.generate.load import load
from regard.generate.scoring import Scorer, ScoreRequest, calibrated
from regard.models import GPTConfig, ModelConfig
from regard.train import AdamWConfig, Experiment, TrainConfig, fit

CONTEXT = 24
MODELS: dict[str, Any] = {"gpt": {}, "rotary gpt": {"position": "rotary", "kv_heads": 1}}


def model(**parts: Any) -> Any:
    torch.manual_seed(0)
    config: ModelConfig = GPTConfig(
        **{"vocabulary": 256, "context": CONTEXT, "layers": 2, "heads": 2, "width": 16, **parts}
    )
    built = config.build().double().eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return built


def brute_force(built: Any, prompt: bytes, choice: bytes) -> float:
    """Token by token, each from a forward pass of its own over the last tokens that fit."""
    text, total = prompt + choice, 0.0
    for place in range(len(prompt), len(text)):
        first = max(0, len(text) - 1 - CONTEXT)
        with torch.no_grad():
            logits = built(torch.tensor([list(text[first:place])]))[0, -1]
        total += float(logits.log_softmax(-1)[text[place]])
    return total


@settings(deadline=None, max_examples=10)
@given(
    name=st.sampled_from(list(MODELS)),
    asked=st.lists(
        st.tuples(
            st.text("abc ", min_size=1, max_size=30),
            st.lists(st.text("xyz", min_size=1, max_size=5), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_scores_equal_brute_force(name: str, asked: list[tuple[str, list[str]]]) -> None:
    built, tokenizer = model(**MODELS[name]), BytesConfig().build([])
    requests = [ScoreRequest(prompt, choices) for prompt, choices in asked]
    found = dict(Scorer(built, tokenizer).score(requests))
    assert sorted(found) == list(range(len(asked)))
    for number, (prompt, choices) in enumerate(asked):
        for choice, one in zip(choices, found[number], strict=True):
            assert one.text == choice
            assert one.tokens == one.size == len(choice)
            assert one.total == pytest.approx(brute_force(built, prompt.encode(), choice.encode()), abs=1e-9)
            assert one.truncated == max(0, len(prompt + choice) - 1 - CONTEXT)


def test_choices_are_scored_from_the_same_token_on() -> None:
    """A token of a BPE may hold the end of the prompt and the beginning of one choice, but not of the other."""
    from regard.data.tokenizers.bpe import BpeConfig

    tokenizer = BpeConfig(vocabulary=300).build(["a cat sat. a cat ran. a cat sat. " * 20])
    built = model(vocabulary=300)
    prompt, choices = "a cat ", ["sat", "xyz"]
    scored = dict(Scorer(built, tokenizer).score([ScoreRequest(prompt, choices)]))[0]
    whole = [tokenizer.encode(prompt + choice).tolist() for choice in choices]
    shared = min(len(ids) - one.tokens for ids, one in zip(whole, scored, strict=True))
    assert whole[0][:shared] == whole[1][:shared]
    for ids, one in zip(whole, scored, strict=True):
        assert len(ids) - one.tokens == shared
        with torch.no_grad():
            logs = built(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        wanted = sum(float(logs[place - 1, ids[place]]) for place in range(shared, len(ids)))
        assert one.total == pytest.approx(wanted, abs=1e-9)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(st.floats(-20, 0), min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_calibration_is_that_of_zhao_et_al(free: list[list[float]], data: st.DataObject) -> None:
    scores = torch.tensor(data.draw(st.lists(st.floats(-20, 0), min_size=3, max_size=3)), dtype=torch.float64)
    content_free = torch.tensor(free, dtype=torch.float64)
    p = content_free.softmax(-1).mean(0)
    wanted = torch.diag(1 / p) @ scores.softmax(-1)  # W = diag(p)^-1, section 5
    torch.testing.assert_close(calibrated(scores, content_free).exp(), wanted / wanted.sum())
    if len(free) == 1:  # what the model says without content becomes uniform
        torch.testing.assert_close(calibrated(content_free, content_free)[0].exp(), torch.full((3,), 1 / 3).double())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    (folder / "text.txt").write_text("+yes. -no. " * 60)
    tiny = GPTConfig(context=CONTEXT, layers=1, heads=2, width=16)
    data = TextConfig(path=str(folder / "text.txt"), tokenizer=BytesConfig(), batch=8)
    training = TrainConfig(steps=80, optimizer=AdamWConfig(lr=1e-2), evaluate_every=None, save_every=None, device="cpu")
    fit(Experiment(tiny, data, train=training), "one", runs=folder / "runs")
    rows = [{"text": text, "answer": answer} for text, answer in (("+", "yes"), ("-", "no")) * 3]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "asked.csv").write_text(
        "text,answer,choices\n" + "".join(f"{r['text']},{r['answer']},yes|no\n" for r in rows)
    )
    return folder


def scored(folder: Path, capsys: Any, *words: str) -> Any:
    code = main(["score", "one", *words, "--runs", str(folder / "runs"), "--device", "cpu", "--json"])
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out)


def test_the_command_scores_a_file(folder: Path, capsys: Any) -> None:
    template = ["--template", "{text}{answer}"]
    found = scored(folder, capsys, str(folder / "asked.jsonl"), *template, "--choices", "yes|no", "--calibrate")
    assert found["accuracy"] == {"sum": 1.0, "token": 1.0, "byte": 1.0}
    assert (found["examples"], found["most_frequent"], found["accuracy_calibrated"]) == (6, 0.5, 1.0)
    table = scored(folder, capsys, str(folder / "asked.csv"), *template)
    assert table["predictions"] == found["predictions"]
    built = load(folder / "runs" / "one").model.double()
    (right, wrong), want = found["predictions"][0]["choices"], brute_force(built, b"+", b"yes")
    assert right["log_probability"] == pytest.approx(want, abs=1e-4)
    assert wrong["text"] == "no"
    shots = scored(folder, capsys, str(folder / "asked.csv"), *template, "--shots", "2")
    assert (shots["examples"], shots["shots"]) == (4, 2)
    open_answers = scored(folder, capsys, str(folder / "asked.jsonl"), *template)
    assert "accuracy" not in open_answers
    assert open_answers["greedy"] == 1.0


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ('{"text": "good"}', [], "no `answer`"),
        ('{"text": "good", "answer": "maybe", "choices": ["yes"]}', [], "none of the choices"),
        ('{"text": "good", "answer": "yes"}', ["--template", "{txt} {answer}"], "{txt}, but an example has {text}"),
        ('{"text": "good", "answer": "yes"}', ["--template", "{answer} {text}"], "does not end with {answer}"),
        ('{"text": "good", "answer": "yes"}', ["--shots", "1"], "give a smaller number"),
        ('{"text": "good", "answer": "yes"}', ["--calibrate"], "calibration compares choices"),
        ('{"text": 1', [], "is no JSON"),
        ("", [], "has no records"),
    ],
)
def test_errors_name_the_fix(
    folder: Path, tmp_path: Path, capsys: Any, content: str, words: list[str], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    template = [] if "--template" in words else ["--template", "{text} {answer}"]
    assert main(["score", "one", str(path), *template, *words, "--runs", str(folder / "runs")]) == 2
    assert message in capsys.readouterr().err
