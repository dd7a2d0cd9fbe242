"""`regard evaluate`: what training measured, any part, any stride, and only the text that was trained on."""

import gzip
import json
import math
from typing import cast

import pytest

from regard.commands.evaluate import EvaluateOptions, other_text
from regard.errors import UserError
from regard.generate.load import LoadedModel
from regard.recipes import get
from regard.runs import Run
from warm_process import regard

TEXT = "the quick brown fox jumps over the lazy dog, and the dog looks up. " * 60
TINY = "--model.context 16 --model.layers 1 --model.heads 2 --model.width 16 --data.batch 4 --train.steps 4".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "text.txt").write_text(TEXT)
    train = ["train", "shakespeare-small", "--name", "one", "--data.path", "text.txt", "--data.test", "0.1", *TINY]
    done = regard(folder, *train, "--data.tokenizer", "bpe", "--data.tokenizer.vocabulary", "300", "--json")
    assert done.returncode == 0, done.stderr
    (folder / "trained.json").write_text(done.stdout)
    return folder


def evaluated(folder, *options):
    done = regard(folder, "evaluate", "one", "--device", "cpu", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_side_by_side_it_is_what_training_measured(folder):
    found = evaluated(folder)
    assert found["part"] == "validation"
    assert found["loss"] == pytest.approx(
        json.loads((folder / "trained.json").read_text())["validation_loss"], rel=1e-5
    )


def test_bits_are_counted_by_what_the_part_stands_for(folder):
    found = evaluated(folder, "--part", "test", "--stride", "4")
    nats = found["loss"] * found["targets"]
    size = nats / math.log(2) / found["bits_per_byte"]
    assert size == pytest.approx(round(size), abs=1e-3)
    assert size < 0.11 * len(TEXT)
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_character"])  # plain ASCII
    assert found["targets"] < size  # a token of these is more than a byte


def test_any_file_is_measured_with_the_tokenizer_of_the_run(folder):
    """The run's own validation part, as a file, is what it was as a part; the training text is not needed."""
    whole = folder / "text.txt"
    (folder / "other.txt.gz").write_bytes(gzip.compress(("another text: über den Fuß. " * 9).encode()))
    whole.rename(folder / "elsewhere.txt")
    try:
        found = evaluated(folder, "--file", "other.txt.gz")
        said = regard(folder, "evaluate", "one", "--device", "cpu", "--file", "other.txt.gz").stdout
        missing = regard(folder, "evaluate", "one", "--file", "nowhere.txt")
    finally:
        (folder / "elsewhere.txt").rename(whole)
    assert "part" not in found
    assert found["file"] == "other.txt.gz"
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_character"] / found["bits_per_byte"] == pytest.approx(31 / 29, rel=0.02)  # 29 + 2 of UTF-8
    assert f"other.txt.gz of {found['targets']:,} tokens: {found['loss']:.4f} nats per token, perplexity " in said
    assert "bits per byte" in said
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no file nowhere.txt" in missing.stderr
    start = int(len(TEXT) * 0.8)
    (folder / "held.txt").write_text(TEXT[start : start + 400])
    assert evaluated(folder, "--file", "held.txt")["loss"] == pytest.approx(evaluated(folder)["loss"], rel=0.05)


def test_another_text_or_part_is_a_sentence(folder):
    (folder / "text.txt").write_text(TEXT + "More, with new letters: QXZ!")
    try:
        done = regard(folder, "evaluate", "one", "--device", "cpu")
    finally:
        (folder / "text.txt").write_text(TEXT)
    assert done.returncode == 2
    assert "not what this run was trained on" in done.stderr
    for options, named in ((["--stride", "17"], "at most the context, 16"), (["--batch", "0"], "--batch")):
        done = regard(folder, "evaluate", "one", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert named in done.stderr


def test_a_file_for_a_translation_model_is_a_sentence_with_the_command(tmp_path):
    run = Run.create(tmp_path, "pairs", "", {})
    with pytest.raises(UserError, match=r"regard translate .*pairs --file SOURCES --reference TRANSLATIONS"):
        other_text(EvaluateOptions(file="x.tsv"), run, get("translate-transformer"), cast(LoadedModel, None))


def test_a_training_tells_by_what_its_task_is_judged(tmp_path):
    """The accuracy of the last evaluation: in the terminal and in the report as measured by `regard evaluate`."""
    tiny = "--model.layers 1 --model.width 16 --data.size 2 --data.validation 64 --train.steps 40".split()  # noqa: SIM905
    done = regard(tmp_path, "train", "toy-copy", "--name", "copy", *tiny)
    assert done.returncode == 0, done.stderr
    found = json.loads(regard(tmp_path, "evaluate", "runs/copy", "--part", "validation", "--json").stdout)
    words = f"accuracy {found['accuracy']:.4f}"
    assert done.stdout.splitlines()[0].endswith(f", {words}")
    assert f", {words}\n" in done.stderr  # of the evaluation
    assert done.stdout.splitlines()[2:] == ["evaluate: regard evaluate runs/copy --part test"]
    html = (tmp_path / "runs" / "copy" / "report.html").read_text(encoding="utf-8")
    assert f"<b>{found['accuracy']:.4f}</b><span>validation accuracy</span>" in html
    assert f"The last evaluation measured {words}; " in html
    assert "<h2>Loss</h2>" in html
    assert "<h2>Samples</h2>" not in html  # without a problem there is no answer


def test_a_language_model_is_judged_by_its_loss(folder):
    assert "measured" not in (folder / "runs" / "one" / "report.html").read_text(encoding="utf-8").split("<h2>Loss")[0]
