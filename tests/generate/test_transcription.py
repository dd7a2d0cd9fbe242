"""`regard transcribe`: WAV files, resampling, and greedy transcripts against full forward passes."""

from __future__ import annotations

import json
import math
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.convert.families.whisper import Whisper
from regard.convert.family import Settings
from regard.convert.hub import write_hub
from regard.data import Specials
from regard.data.audio import RATE, log_mel, read_sound, resampled
from regard.errors import UserError
from regard.generate import transcription
from regard.generate.transcription import load_transcriber
from regard.models import Transformer
from regard.runs import Run

SIZES = {"vocab_size": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SIZES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "num_mel_bins": 8}
SIZES |= {"max_source_positions": 20, "max_target_positions": 14}
NAMES = ["<|end|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
FORBIDDEN, FIRST = (9, 11), (12, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small Whisper with random weights, imported."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("whisper")
    library = tokenizers.Tokenizer(tokenizers.models.BPE({chr(97 + n): n for n in range(26)}, []))
    library.post_processor = tokenizers.processors.TemplateProcessing("a $A", None, [("a", 0)])
    library.add_special_tokens(NAMES)
    library.save(str(folder / "tokenizer.json"))
    config = Whisper().config("whisper", Settings(SIZES))
    torch.manual_seed(3)
    model = config.build()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "bias" not in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    write_hub(folder / "hub", config, model, folder / "tokenizer.json", Specials(26, 27, 26))
    fields = json.loads((folder / "hub/config.json").read_text())
    fields |= {"suppress_tokens": FORBIDDEN, "begin_suppress_tokens": FIRST}
    (folder / "hub/config.json").write_text(json.dumps(fields))
    assert main(["import", str(folder / "hub"), "small", "--runs", str(folder)]) == 0
    return Run.open(folder / "small")


def write(path: Path, samples: np.ndarray, rate: int = RATE, width: int = 2) -> Path:
    """Samples [N] or [N, channels] in [-1, 1] as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64) + (128 if width == 1 else 0)
        file.writeframes(whole.astype("<i8").reshape(-1, 1).view(np.uint8)[:, :width].tobytes())
    return path


def tone(rate: int, seconds: float = 0.5, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * hertz * np.arange(round(rate * seconds)) / rate)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_every_width_are_read(width: int, channels: int, tmp_path: Path) -> None:
    sound = tone(RATE) if channels == 1 else np.stack([tone(RATE), -0.5 * tone(RATE)], axis=1)
    found = read_sound(write(tmp_path / "a.wav", sound, width=width))
    wanted = sound if channels == 1 else sound.mean(1)
    np.testing.assert_allclose(found.numpy(), wanted, atol=2.0 ** (2 - 8 * width) + 1e-6)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_a_tone_stays_a_tone_at_another_rate(rate: int) -> None:
    found = resampled(torch.from_numpy(tone(rate)), rate).numpy()
    assert len(found) == RATE // 2
    inner = slice(200, -200)  # the ends have silence beside them
    np.testing.assert_allclose(found[inner], tone(RATE)[inner], atol=2e-3)


def test_frequencies_above_both_rates_are_removed() -> None:
    found = resampled(torch.from_numpy(tone(48_000, hertz=11_000)), 48_000)
    assert found[200:-200].abs().max() < 2e-3


@torch.no_grad()
@pytest.mark.parametrize("language", [None, "en", "de"])
@pytest.mark.parametrize("several", [False, True])
def test_a_transcript_is_the_greedy_one(
    run: Run, language: str | None, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcription, "ENGLISH", 0 if several else 1000)
    transcriber = load_transcriber(run, language=language)
    model, begin = transcriber.model, [27]
    assert isinstance(model, Transformer)
    samples = torch.randn(transcriber.window + 500, generator=torch.Generator().manual_seed(0)) / 10
    found = list(transcriber.transcribe(samples))
    assert [(one.begin, one.end) for one in found] == [(0, 0.4), (0.4, 0.4 + 500 / RATE)]
    for one, piece in zip(found, samples.split(transcriber.window), strict=True):
        sound, lengths = log_mel(piece, 8, 0.4)[None], torch.tensor([40])
        prefix = list(begin)
        if several:
            scores = model(torch.tensor([begin]), sound, lengths)[0, -1]
            detected = "en" if scores[28] >= scores[29] else "de"
            assert one.language == (language or detected)
            prefix += [28 if one.language == "en" else 29, 31]
        prefix.append(32)
        tokens: list[int] = []
        while len(prefix + tokens) <= 14:
            scores = model(torch.tensor([prefix + tokens]), sound, lengths)[0, -1]
            scores[list(FORBIDDEN + (() if tokens else FIRST))] = -math.inf
            if (token := int(scores.argmax())) == 26:
                break
            tokens.append(token)
        assert one.tokens == tokens


def test_the_command_prints_text_or_json(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.wav", tone(8000), rate=8000)
    assert main(["transcribe", str(path), "--run", str(run.path), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["transcripts"]
    assert record["seconds"] == 0.5
    assert len(record["windows"]) == 2
    assert main(["transcribe", str(path), str(path), "--run", str(run.path), "--beam", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}\t")


def test_what_is_wrong_is_a_sentence(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.wav").write_text("this is no sound")
    whole = write(tmp_path / "a.wav", tone(RATE)).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:30])
    (tmp_path / "float.wav").write_bytes(whole[:20] + b"\x03\x00" + whole[22:])
    write(tmp_path / "empty.wav", tone(RATE, 0))
    write(tmp_path / "odd.wav", tone(44_101), rate=44_101)
    wrong = {"none.wav": "there is no file", "text.wav": "no WAV file", "cut.wav": "no WAV file"}
    wrong |= {"float.wav": "ffmpeg", "empty.wav": "no samples", "odd.wav": "44,101"}
    for name, word in wrong.items():
        assert main(["transcribe", str(tmp_path / name), "--run", str(run.path)]) == 2
        assert word in capsys.readouterr().err
    for options, word in ((("--translate",), "English only"), (("--beam", "0"), "at least 1")):
        assert main(["transcribe", str(tmp_path / "a.wav"), "--run", str(run.path), *options]) == 2
        assert word in capsys.readouterr().err
    assert main(["transcribe"]) == 2
    assert "give a file" in capsys.readouterr().err


def test_a_language_that_the_model_lacks_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "ENGLISH", 0)
    with pytest.raises(UserError, match="no language 'eng'; did you mean en"):
        load_transcriber(run, language="eng")


def test_damaged_files_are_sentences(tmp_path: Path) -> None:
    path, draw = write(tmp_path / "a.wav", tone(8000, 0.02), rate=8000), np.random.default_rng(0)
    whole = path.read_bytes()
    for number in range(200):
        data = bytearray(whole[: draw.integers(len(whole))] if number % 3 == 0 else whole)
        for _ in range(number % 3 if data else 0):
            data[draw.integers(min(len(data), 44))] = draw.integers(256)
        path.write_bytes(data)
        with suppress(UserError):  # any other error fails
            assert read_sound(path).isfinite().all()
