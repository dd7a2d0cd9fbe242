"""Recordings: files, folders and tables of the user, near-duplicates, and what damaged files say."""

from __future__ import annotations

import json
import wave
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from regard.data import SoundsConfig, SpeechConfig
from regard.data.audio import read_sound
from regard.data.origins.debian import DebianPackage
from regard.data.origins.several import SeveralPackages
from regard.data.signals.near_duplicates import alike, joined_groups
from regard.data.signals.recordings import Recording, decode, decode_once, pack, read_table, to_samples, unpack
from regard.data.signals.speech import SpeechData, normalized
from regard.data.sources import dutch_fish, phone_prompts, spoken_letters
from regard.errors import UserError
from regard.models import SignalConfig

RATE = 4000


def noise(seconds: float = 0.2, seed: int = 0) -> np.ndarray:
    """A sound whose loudness changes, so that two are not alike."""
    random = np.random.default_rng(seed)
    count = round(seconds * RATE)
    loudness = np.interp(np.arange(count), np.linspace(0, count, 8), random.random(8) ** 3)
    return (random.normal(size=count) * loudness * 0.2).astype(np.float32)


def write(path: Path, sound: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(to_samples(sound).tobytes())
    return path


def folder(root: Path, each: int = 6) -> Path:
    for label in range(2):
        for number in range(each):
            write(root / "ab"[label] / f"{number}.wav", noise(0.1 + number / 50, seed=10 * label + number))
    return root


def table(root: Path, texts: list[str]) -> Path:
    rows = ["file\ttext"]
    for number, text in enumerate(texts):
        write(root / f"{number}.wav", noise(seed=number))
        rows.append(f"{number}.wav\t{text}")
    (root / "speech.tsv").write_text("\n".join(rows), encoding="utf-8")
    return root / "speech.tsv"


def test_a_packed_file_gives_the_recordings_back(tmp_path: Path) -> None:
    given = [Recording("a/1", "en", "one", b"123"), Recording("b", "eén", "two", b""), Recording("c", "x", "c", b"45")]
    (tmp_path / "packed").write_bytes(pack(given))
    assert unpack(tmp_path / "packed") == given
    assert pack(given) == pack(given)
    (tmp_path / "packed").write_bytes(pack(given)[:-1])
    with pytest.raises(UserError, match="remove it"):
        unpack(tmp_path / "packed")


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    config = SoundsConfig(path=str(folder(tmp_path)), rate=RATE, validation=0.2, test=0.2, crop=False)
    data = config.build(0)
    assert data.labels == ("a", "b")
    counts = (data.count, data.validation_count or 0, data.test_count or 0)
    assert sum(counts) == 12
    assert min(counts) >= 1
    batch = next(data.test_batches(8))
    assert batch.lengths is not None
    assert batch.inputs.shape[1] == int(batch.lengths.max())
    assert [one.given for one in data.held_out(2)] == [data.labels[int(target)] for target in batch.targets[:2]]
    examples = config.read_examples(tmp_path / "a", SignalConfig())
    assert [Path(one.name).name for one in examples] == [f"{n}.wav" for n in range(6)]
    assert examples[0].batch.inputs.shape == (1, 400, 1)


def test_equal_recordings_are_in_one_part(tmp_path: Path) -> None:
    root = folder(tmp_path, 4)
    for number in range(12):  # the same sound at twelve volumes: not equal, but alike
        write(root / "a" / f"again{number}.wav", noise(0.3, 50) * (0.5 + number / 24))
    data = SoundsConfig(path=str(root), rate=RATE, validation=0.3, test=0.3).build(0)
    lengths = [set(part.lengths.tolist()) for part in data.parts.values()]
    assert sum(1200 in some for some in lengths) == 1
    config = SoundsConfig(path=str(root), rate=RATE, validation=0.3, test=0.3, alike=1.0)
    assert sum(1200 in part.lengths for part in config.build(0).parts.values()) == 3


def test_alike() -> None:
    first, second = to_samples(noise(seed=1)), to_samples(noise(seed=2))
    soft = to_samples(noise(seed=1) / 3)
    longer = np.concatenate((first, first[: len(first) // 3]))
    assert alike([first, second, soft, longer], RATE, 0.95) == [(0, 2)]


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.data())
def test_joined_groups_are_the_connected_components(groups: list[str], draw) -> None:
    place = st.integers(0, len(groups) - 1)
    pairs = draw.draw(st.lists(st.tuples(place, place), max_size=8))
    found = joined_groups(groups, pairs)
    reached = [{n for n, group in enumerate(groups) if group == mine} for mine in groups]
    for _ in groups:
        for one, other in pairs:
            union = reached[one] | reached[other]
            for n in union:
                reached[n] = reached[n] | union
    for n, mine in enumerate(found):
        assert {m for m, other in enumerate(found) if other == mine} == reached[n]


def test_a_table_of_speech(tmp_path: Path) -> None:
    texts = [f"Zin {'abcdefghijkl'[n] * (n + 3)}, nummer {n}!" for n in range(12)] + [""]
    config = SpeechConfig(path=str(table(tmp_path, texts)), rate=RATE, validation=0.2, test=0.2, near=100)
    data = config.build(0)
    assert isinstance(data, SpeechData)
    assert data.count + (data.validation_count or 0) + (data.test_count or 0) == 12  # without the empty one
    said = data.held_out(1)[0]
    assert said.given in [normalized(text) for text in texts]
    again = config.build(0)
    assert again.sha256 == data.sha256


def test_near_texts_are_left_out(tmp_path: Path) -> None:
    texts = [f"de vis zwemt door het grote koude water nummer {n}" for n in range(10)]
    config = SpeechConfig(path=str(table(tmp_path, texts)), rate=RATE, validation=0.2, test=0.2)
    data = config.build(0)
    assert (data.validation_count, data.test_count) == (0, 0)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("../x.wav\tja", "in the folder of the table"),
        ("/etc/passwd\tja", "in the folder"),
        ("\tja", "needs the columns"),
    ],
)
def test_a_table_names_files_beside_it(tmp_path: Path, row: str, problem: str) -> None:
    (tmp_path / "t.tsv").write_text(f"file\ttext\n{row}\n")
    with pytest.raises(UserError, match=problem):
        read_table(tmp_path / "t.tsv")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        SoundsConfig(path=str(tmp_path / "none")).build(0)
    write(tmp_path / "a" / "1.wav", noise())
    with pytest.raises(UserError, match="at least two classes"):
        SoundsConfig(path=str(tmp_path)).build(0)
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="no recording"):
        SoundsConfig(path=str(tmp_path)).build(0)
    with pytest.raises(ValueError, match="has no sounds; with sounds are: phone-prompts, spoken-letters"):
        SoundsConfig(source="mnist").build(0)
    with pytest.raises(ValueError, match="correlation"):
        SoundsConfig(alike=0.0).build(0)


def test_decoded_once(tmp_path: Path) -> None:
    path = write(tmp_path / "1.wav", noise())
    given = [Recording("1", "a", "1", path.read_bytes()), Recording("2", "a", "2", path)]
    first = decode_once(given, 2000, "key", tmp_path / "cache")
    path.unlink()
    again = decode_once(given, 2000, "key", tmp_path / "cache")
    assert len(first) == 2
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert first[0].shape == (400, 1)


def test_damaged_files_are_sentences(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    draw, kinds = np.random.default_rng(0), {"ogg": "VORBIS", "flac": "PCM_16", "wav": "FLOAT", "mp3": None}
    failed = 0
    for kind, subtype in kinds.items():
        path = tmp_path / f"a.{kind}"
        soundfile.write(path, noise(0.1).repeat(2), 8000, subtype=subtype)
        assert abs(len(read_sound(path, 8000)) - 800) <= (1200 if kind == "mp3" else 1)
        whole = path.read_bytes()
        for number in range(25):
            data = bytearray(whole[: draw.integers(len(whole))] if number % 3 == 0 else whole)
            for _ in range(3 * (number % 3) if data else 0):
                data[draw.integers(len(data))] = draw.integers(256)
            path.write_bytes(data)
            failed += 1
            with suppress(UserError):  # any other error fails
                assert read_sound(path, 8000).isfinite().all()
                failed -= 1
    assert failed > 10


def test_formats_without_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    (tmp_path / "a.ogg").write_bytes(b"OggS....")
    with pytest.raises(UserError, match=r"pip install 'regard\[audio\]'"):
        decode([Recording("a", "", "", tmp_path / "a.ogg")], RATE)
    assert len(read_sound(write(tmp_path / "a.wav", noise()), RATE)) == 800


def test_sources_make_recordings_of_their_members(tmp_path: Path) -> None:
    root = "usr/share/asterisk/sounds/"
    files = {f"{root}fr_CA_f_June/{name}.wav": bytes(2000) for name in ("hello", "beep", "silence/1", "digits/2")}
    files[f"{root}en_US_f_Allison/hello.wav"] = bytes(2000)
    files[f"{root}en_US_f_Allison/empty.wav"] = bytes(44)
    (tmp_path / "p").write_bytes(phone_prompts._assemble(files))
    found = [(one.label, one.group) for one in unpack(tmp_path / "p")]
    assert found == [("en", "hello"), ("fr", "digits/2"), ("fr", "hello")]
    letters = {"usr/share/klettres/es/alpha/A.ogg": b"1", "usr/share/klettres/nl/syllab/a.ogg": b"2"}
    (tmp_path / "l").write_bytes(spoken_letters._assemble(letters))
    assert [(one.label, one.group) for one in unpack(tmp_path / "l")] == [("es", "a"), ("nl", "a")]
    game = "usr/share/games/fillets-ng/"
    script = 'dialogId("x", "font_small", "Look, \\"a\\" fish")\ndialogStr("Kijk,  een \\"vis\\".")\n'
    script += 'dialogId("y", "f", "Silent")\n\n\ndialogStr("Stil.")\n'
    fish = {f"{game}script/sea/dialogs_nl.lua": script.encode(), f"{game}sound/sea/nl/x.ogg": bytes(5000)}
    (tmp_path / "d").write_bytes(dutch_fish._assemble(fish))
    assert [(one.name, one.label) for one in unpack(tmp_path / "d")] == [("sea/x.ogg", 'Kijk, een "vis".')]


def test_several_packages_become_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def package(name: str) -> DebianPackage:
        return DebianPackage(package=name, version="1", sha256="", members=(f"{name}/*",))

    def download(self: DebianPackage, folder: Path) -> Path:
        folder.mkdir()
        (folder / "x.deb").write_text(self.package)
        return folder / "x.deb"

    monkeypatch.setattr(DebianPackage, "download", download)
    monkeypatch.setattr(
        "regard.data.origins.several.read_members", lambda path, _: {path.read_text(): path.read_bytes()}
    )
    origin = SeveralPackages((package("a"), package("b")), lambda members: json.dumps(sorted(members)).encode())
    origin.fetch(tmp_path / "whole")
    assert json.loads((tmp_path / "whole").read_text()) == ["a", "b"]
    assert str(origin) == "the Debian package a 1 and the Debian package b 1"
