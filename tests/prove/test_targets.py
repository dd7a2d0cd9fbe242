"""What `regard prove` takes: recipes, runs, and models of transformers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from regard.commands.prove import ProveOptions, prove
from regard.errors import UserError
from regard.prove import certify
from regard.prove.reduced import reduced_experiment
from regard.recipes import get, names

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 64}
FIXED = {"roformer", "megatron-bert", "rembert", "big_bird"}  # huggingface/transformers#48745


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if get(name).init is None])
def test_every_recipe_is_sound(name):
    found = certify(reduced_experiment(get(name)))
    assert found.failed == [], str(found)
    ordered = "holds" if get(name).model.generates else "not applicable"  # no token of the others follows another
    assert found.of("future").verdict == found.of("step").verdict == ordered
    if get(name).data.kind == "text" and name not in ("shakespeare-encoder", "masked-plays"):  # they choose targets
        assert found.of("loss").verdict == "holds"


@pytest.mark.gpu
def test_claims_about_data_on_a_gpu():
    subject = reduced_experiment(get("shakespeare-small"))
    assert subject.module is not None
    subject.module.to("cuda")
    assert certify(subject, claims=["loss", "accumulation"]).failed == []


def test_a_recipe_as_json(capsys):
    assert prove(ProveOptions(target="shakespeare-small", claims="future,loss,overlap,tokenizer", json=True)) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["sound"] is True
    assert [claim["verdict"] for claim in output["claims"]] == ["holds"] * 4
    assert "reduced size" in output["about"]


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_a_model_of_transformers(tmp_path: Path, capsys, causal: bool):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SMALL, "is_decoder": causal}))
    assert prove(ProveOptions(target=f"hf:{tmp_path}")) == 0
    said = capsys.readouterr().out
    assert ("BertLMHeadModel" if causal else "BertForMaskedLM") in said
    assert ("causal" if causal else "bidirectional") in said
    assert "none fails" in said


@pytest.mark.slow
def test_twelve_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    try:
        from foreign import table  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    failed = {kind for kind, output in table().items() if not output["sound"]}
    assert failed == (FIXED if version == (5, 12) else set())


def regard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "regard", *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_whose_held_out_text_was_trained_on_ends_with_1(tmp_path: Path):
    draw = random.Random(1)
    half = "".join(draw.choice("abcdefgh ") for _ in range(6000))
    (tmp_path / "twice.txt").write_text(half + half)
    text, runs = str(tmp_path / "twice.txt"), ("--runs", str(tmp_path))
    trained = regard("train", "shakespeare-small", "--data.path", text, "--name", "a", *runs, "--train.steps", "2")
    assert trained.returncode == 0, trained.stderr
    output = regard("prove", *runs)  # the newest run
    assert output.returncode == 1, output.stdout + output.stderr
    assert "overlap       fails" in output.stdout
    certificate = tmp_path / "a" / "certificate.json"
    assert json.loads(certificate.read_text())["request"]["target"] == str(tmp_path / "a")
    assert certificate.with_suffix(".html").is_file()
    assert regard("prove", "--check", str(certificate)).returncode == 0
    as_json = regard("prove", "a", *runs, "--claims", "overlap,future", "--json")
    assert as_json.returncode == 1
    assert [claim["verdict"] for claim in json.loads(as_json.stdout)["claims"]] == ["holds", "fails"]


def test_mistakes_are_output_in_a_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    for target in ("hf:nowhere", f"hf:{tmp_path}", "shakespeer"):
        with pytest.raises(UserError):
            prove(ProveOptions(target=target))
    with pytest.raises(UserError):
        prove(ProveOptions(target="shakespeare", causal=True))
