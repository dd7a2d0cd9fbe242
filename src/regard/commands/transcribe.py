"""`regard transcribe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import RUNS, CommandOptions, open_run
from regard.config import argument, option
from regard.errors import UserError
from regard.runs.waiting import waiting


@dataclass(frozen=True)
class TranscribeOptions(CommandOptions):
    """Options of `regard transcribe`."""

    file: tuple[Path, ...] = argument((), "WAV files of speech; other formats: ffmpeg -i FILE speech.wav")
    run: str = option("whisper-tiny", "the run of a Whisper, or a name of `regard models`")
    runs: Path = option(RUNS, "the folder that holds runs")
    language: str | None = option(None, "the language that is spoken, such as en; default: it is detected")
    translate: bool = option(False, "write the text in English")
    beam: int = option(1, "number of beams; 1 is greedy decoding")
    step: int | None = option(None, "step of the checkpoint; default: the newest")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")


def transcribe(options: TranscribeOptions) -> int:
    """Write the text of speech in WAV files, by Whisper.

    Samples of 8 to 32 bits are read; channels are averaged, and other rates are resampled to 16 kHz. Longer sounds are
    read in windows of 30 seconds, one after the other.
    """
    options.check_at_least_one("beam")
    if not options.file:
        raise UserError("there is no sound; give a WAV file: regard transcribe FILE.wav")
    if missing := [path for path in options.file if not path.exists()]:
        raise UserError(f"there is no file {missing[0]}; give a WAV file")
    run = open_run(options.run, options.runs)
    from regard.data.audio import RATE, read_wav
    from regard.generate.transcription import load_transcriber
    from regard.models.device import find_device

    made = {"language": options.language, "translate": options.translate, "beams": options.beam}
    transcriber = load_transcriber(run, find_device(options.device), options.step, **made)
    records, lines = [], []
    for path in options.file:
        samples, pieces = read_wav(path), []
        with waiting(f"transcribing {path}") as say:
            for piece in transcriber.transcribe(samples):
                pieces.append(piece)
                say(f"transcribing {path}", piece.end * RATE / len(samples))
        text = " ".join(piece.text for piece in pieces if piece.text)
        languages = list(dict.fromkeys(piece.language for piece in pieces if piece.language))
        records.append(
            {
                "file": str(path),
                "seconds": len(samples) / RATE,
                "languages": languages,
                "text": text,
                "windows": [piece._asdict() for piece in pieces],
            }
        )
        lines.append(text if len(options.file) == 1 else f"{path}\t{text}")
    options.show({"run": str(run.path), "transcripts": records}, "\n".join(lines))
    return 0
