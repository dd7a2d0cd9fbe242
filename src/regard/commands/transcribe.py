"""`regard transcribe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, CommandOptions, open_run
from regard.config import argument, option
from regard.errors import UserError
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.generate.speech import SpeechTranscriber
    from regard.generate.transcription import Transcriber
    from regard.runs import Run


@dataclass(frozen=True)
class TranscribeOptions(CommandOptions):
    """Options of `regard transcribe`."""

    file: tuple[Path, ...] = argument((), "files of speech: WAV, and with soundfile OGG, FLAC and MP3")
    run: str = option("whisper-tiny", "a run on speech, that of a Whisper, or a name of `regard models`")
    runs: Path = option(RUNS, "the folder that holds runs")
    language: str | None = option(None, "the language that is spoken, such as en; default: it is detected")
    translate: bool = option(False, "write the text in English")
    beam: int = option(1, "number of beams; 1 is greedy decoding")
    step: int | None = option(None, "step of the checkpoint; default: the newest")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")


def transcribe(options: TranscribeOptions) -> int:
    """Write the text of speech in files of sound, by Whisper or by a run of the recipe `dutch-speech`.

    Channels are averaged, and other rates are resampled. Longer sounds are read in windows, one after the other: of 30
    seconds by Whisper, and as long as the longest sound in training by a run.
    """
    options.check_at_least_one("beam")
    if not options.file:
        raise UserError("there is no sound; give a file: regard transcribe FILE.wav")
    if missing := [path for path in options.file if not path.exists()]:
        raise UserError(f"there is no file {missing[0]}; give a WAV file")
    run = open_run(options.run, options.runs)
    from regard.data.audio import read_sound

    transcriber = load(options, run)
    records, lines = [], []
    for path in options.file:
        samples, pieces = read_sound(path, transcriber.rate), []
        with waiting(f"transcribing {path}") as say:
            for piece in transcriber.transcribe(samples):
                pieces.append(piece)
                say(f"transcribing {path}", piece.end * transcriber.rate / len(samples))
        text = " ".join(piece.text for piece in pieces if piece.text)
        languages = list(dict.fromkeys(piece.language for piece in pieces if piece.language))
        records.append(
            {
                "file": str(path),
                "seconds": len(samples) / transcriber.rate,
                "languages": languages,
                "text": text,
                "windows": [piece._asdict() for piece in pieces],
            }
        )
        lines.append(text if len(options.file) == 1 else f"{path}\t{text}")
    options.show({"run": str(run.path), "transcripts": records}, "\n".join(lines))
    return 0


def load(options: TranscribeOptions, run: Run) -> Transcriber | SpeechTranscriber:
    """The transcriber of a run."""
    from regard.generate.speech import load_speech_transcriber
    from regard.generate.transcription import load_transcriber
    from regard.models.base import ModelConfig
    from regard.models.device import find_device

    device = find_device(options.device)
    if run.load(ModelConfig, "model").reads == "signals":
        if options.language is not None or options.translate or options.beam > 1:
            raise UserError(f"{run.path} has no languages and beams; leave --language, --translate and --beam out")
        return load_speech_transcriber(run, device, options.step)
    made = {"language": options.language, "translate": options.translate, "beams": options.beam}
    return load_transcriber(run, device, options.step, **made)
