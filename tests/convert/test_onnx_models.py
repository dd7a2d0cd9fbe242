"""Published ONNX models against onnxruntime on the same files, with real inputs; each is skipped if it is not cached.

The imported models keep activations in float32, so the equal ones are those of `float_activations`. What the
unmodified files give is in docs/results/onnx.md (`pytest -m slow -s tests/convert/test_onnx_models.py` prints it).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_oracle import float_activations, session

from regard.commands.import_ import imported_run
from regard.convert.archive import unpacked
from regard.convert.published import MODELS
from regard.data.audio import log_mel, read_sound
from regard.data.origins.cache import cache_folder
from regard.data.sources import SOURCES
from regard.data.tokenizers.published import PublishedTokenizer
from regard.generate.load import LoadedModel, load_model
from regard.generate.transcription import load_transcriber
from regard.models.base import Encoder, LanguageModel
from regard.runs import Run

pytestmark = pytest.mark.slow
SOUNDS = Path(os.environ.get("REGARD_SOUNDS", "/usr/share/asterisk/sounds/en_US_f_Allison"))
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a story about a cat.",
    "How do I cook rice?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What is a computer?",
    "Explain photosynthesis.",
    "Who was Isaac Newton?",
    "Give me three tips for sleeping well.",
    "你好,请介绍一下自己。",
)
SPOKEN = "basic-pbx-ivr-main cannot-complete-as-dialed conf-adminmenu all-circuits-busy-now demo-congrats demo-instruct"
SPOKEN += " demo-echotest vm-intro privacy-prompt pbx-invalid"

Greedy = tuple[list[int], list[np.ndarray]]  # tokens, and the logits of each


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Run, Path]]:
    """A published model as a run, and the folder of its files."""
    cached = MODELS[request.param].cached()
    if cached is None:
        pytest.skip(f"regard models get {request.param}")
    run, certificate = imported_run(cached, "imported", tmp_path)
    assert certificate.dequantized
    with unpacked(cached) as folder:
        yield run, folder


def first_difference(ours: Greedy, theirs: Greedy) -> tuple[int, float]:
    """The number of equal tokens, and the largest difference of their logits."""
    pairs = zip(ours[0], theirs[0], strict=False)
    count = next(
        (number for number, (one, other) in enumerate(pairs) if one != other), min(map(len, (ours[0], theirs[0])))
    )
    gaps = [float(np.abs(one - other).max()) for one, other in zip(ours[1][:count], theirs[1][:count], strict=True)]
    return count, max(gaps, default=0.0)


@pytest.mark.parametrize("model", ["minimind2"], indirect=True)
def test_minimind2_continues_as_onnxruntime(model: tuple[Run, Path]) -> None:
    run, folder = model
    loaded, path = load_model(run), folder / "model_quantized.onnx"
    sessions = {"float activations": session(float_activations(path)), "as it is": session(path)}
    sessions["as it is, not optimized"] = session(path, optimize=False)
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [loaded.tokenizer.encode(form.format(question)).tolist() for question in QUESTIONS]
    ours = [greedy_of(loaded, prompt, 64) for prompt in prompts]
    found = {name: [onnx_greedy(one, prompt, 64) for prompt in prompts] for name, one in sessions.items()}
    for name, texts in found.items():
        report(f"minimind2, {name}", [first_difference(one, other) for one, other in zip(ours, texts, strict=True)])
    itself = zip(found["as it is"], found["as it is, not optimized"], strict=True)
    report("minimind2, onnxruntime with itself", [first_difference(one, other) for one, other in itself])
    for one, other in zip(ours, found["float activations"], strict=True):
        assert one[0] == other[0]
        assert first_difference(one, other)[1] < 1e-3


@torch.inference_mode()
def greedy_of(loaded: LoadedModel, prompt: list[int], length: int) -> Greedy:
    assert isinstance(loaded.model, LanguageModel)
    state, read = loaded.model.start(1, len(prompt) + length), torch.tensor([prompt])
    tokens, logits = [], []
    for _ in range(length):
        scores, state = loaded.model.step(read, state, last=True)
        read = scores[:, -1:].argmax(-1)
        tokens.append(int(read))
        logits.append(scores[0, -1].numpy())
    return tokens, logits


def onnx_greedy(file: Any, prompt: list[int], length: int) -> Greedy:
    names = [one.name for one in file.get_inputs() if one.name.startswith("past_key_values")]
    shapes = {one.name: [1, one.shape[1], 0, one.shape[3]] for one in file.get_inputs() if one.name in names}
    past, read, used = {name: np.zeros(shapes[name], np.float32) for name in names}, prompt, 0
    tokens, logits = [], []
    for _ in range(length):
        places = np.arange(used, used + len(read))[None]
        used += len(read)
        given = {"input_ids": np.array([read]), "attention_mask": np.ones((1, used), np.int64), "position_ids": places}
        scores, *present = file.run(None, given | past)
        past = dict(zip(names, present, strict=True))
        tokens.append(int(scores[0, -1].argmax()))
        logits.append(scores[0, -1])
        read = tokens[-1:]
    return tokens, logits


@pytest.mark.parametrize("model", ["grammar-tagger"], indirect=True)
def test_the_tagger_tags_as_onnxruntime(model: tuple[Run, Path]) -> None:
    run, folder = model
    loaded = load_model(run)
    assert isinstance(loaded.model, Encoder)
    assert isinstance(loaded.tokenizer, PublishedTokenizer)
    path = folder / "tagger.onnx"
    sentences = real_sentences(50)
    for name, file in (("float activations", session(float_activations(path))), ("as it is", session(path))):
        equal, total, changed, gap = 0, 0, 0, 0.0
        for sentence in sentences:
            ids = loaded.tokenizer.encode(sentence)[None]
            with torch.inference_mode():
                ours = loaded.model(torch.from_numpy(ids))[0].numpy()
            (theirs,) = file.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
            tags = theirs[0].argmax(-1)
            equal, total = equal + int((ours.argmax(-1) == tags).sum()), total + len(tags)
            changed, gap = changed + int((tags != 0).sum()), max(gap, float(np.abs(ours - theirs[0]).max()))
        print(f"\ngrammar-tagger, {name}: {equal} of {total} tags equal ({changed} edits), logits differ by {gap:.2g}")
        if name == "float activations":
            assert equal == total
            assert gap < 1e-3
        else:
            assert equal > 0.9 * total


def real_sentences(count: int) -> list[str]:
    """Sentences of Moby-Dick, every second one with a frequent mistake, so that there is something to tag."""
    path = SOURCES["moby-dick"].cached(cache_folder())
    if path is None:
        pytest.skip("regard data get moby-dick")
    text = re.sub(r"\s+", " ", path.read_text("utf-8")[50_000:250_000])
    found = [one.strip() for one in re.findall(r"[A-Z][^.!?:]{40,140}[.!?]", text)]
    wrong: dict[str, str] = {
        " their ": " there ",
        " to ": " too ",
        " have ": " has ",
        " than ": " then ",
        " it ": " it's ",
    }
    for number in range(0, count, 2):
        for right, mistake in wrong.items():
            found[number] = found[number].replace(right, mistake)
    return found[:count]


@pytest.mark.parametrize("model", ["whisper-tiny"], indirect=True)
def test_whisper_transcribes_as_onnxruntime(model: tuple[Run, Path]) -> None:
    run, folder = model
    files = [SOUNDS / f"{name}.wav" for name in SPOKEN.split()]
    if not all(path.exists() for path in files):
        pytest.skip("apt install asterisk-core-sounds-en-wav")
    transcriber = load_transcriber(run, language="en")
    encoder, decoder = (folder / f"{half}_quantized.onnx" for half in ("encoder_model", "decoder_model_merged"))
    read: Callable[[Path], Any]
    for name, read in (("float activations", lambda path: session(float_activations(path))), ("as it is", session)):
        halves = read(encoder), read(decoder)
        equal, gap = 0, 0.0
        for path in files:
            samples = read_sound(path)
            (ours,) = transcriber.transcribe(samples[: transcriber.window])
            features = log_mel(samples)[None].numpy()
            (memory,) = halves[0].run(["last_hidden_state"], {"input_features": features})
            lengths = torch.tensor([features.shape[-1]])
            with torch.inference_mode():
                own = transcriber.model.encode(torch.from_numpy(features), lengths)[0].numpy()
            tokens = onnx_transcript(halves[1], memory, transcriber.config)
            gap = max(gap, float(np.abs(own - memory).max()))
            equal += tokens == ours.tokens
            print(f"\n{path.stem}: {ours.text}" if name == "float activations" else "", end="")
            if name == "float activations":
                assert tokens == ours.tokens, path.stem
        print(f"\nwhisper-tiny, {name}: {equal} of {len(files)} transcripts equal, encoder differs by {gap:.2g}")
        assert name == "as it is" or gap < 1e-2


def onnx_transcript(decoder: Any, memory: np.ndarray, config: Any) -> list[int]:
    """The greedy tokens for English without timestamps."""
    tokens, prefix = [], [config.begin, 50_259, 50_359, 50_363]
    past = {
        one.name: np.zeros([1, one.shape[1], 0, one.shape[3]], np.float32)
        for one in decoder.get_inputs()
        if one.name.startswith("past_key_values")
    }
    outputs, read = [one.name for one in decoder.get_outputs()], prefix
    while len(tokens) < 440:
        given = {"input_ids": np.array([read]), "encoder_hidden_states": memory}
        found = decoder.run(None, given | past | {"use_cache_branch": np.array([bool(tokens)])})
        for name, value in zip(outputs[1:], found[1:], strict=True):
            if ".decoder." in name or not tokens:  # the keys and values of the encoder are made once
                past[name.replace("present", "past_key_values")] = value
        scores = found[0][0, -1]
        scores[list(config.forbidden) + ([] if tokens else list(config.forbidden_first))] = -np.inf
        if (token := int(scores.argmax())) == config.end:
            break
        tokens.append(token)
        read = [token]
    return tokens


def report(name: str, found: list[tuple[int, float]]) -> None:
    whole = sum(count == 64 for count, _ in found)
    print(
        f"\n{name}: {whole} of {len(found)} texts equal, equal tokens {[count for count, _ in found]}, "
        f"logits differ by {max(gap for _, gap in found):.2g}"
    )
