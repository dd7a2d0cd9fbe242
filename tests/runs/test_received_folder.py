"""A run folder from somebody else: nothing outside it is read or changed, and nothing waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from received_kit import copy, make, one_sentence, regard

from regard.errors import UserError
from regard.runs import Run
from regard.runs.disk import write_synced
from regard.runs.notes import read_notes, write_notes
from regard.untrusted import UnsafeFile, open_plain, printable, read_plain
from warm_process import python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and FIFOs as POSIX systems have them")
SECRET = "a private line that nobody may see or change\n"
#: Every file of a run folder that is opened where it is.
FILES = ("config.toml", "environment.json", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "findings.jsonl")
FILES += ("notes.json", "MANIFEST.json", ".lock", "report.html")
CHECKPOINT = tuple(
    f"checkpoints/step-000004/{name}"
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def received(trained: Path, tmp_path: Path) -> Path:
    return copy(trained, tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


def use_everything(path: Path) -> str:
    """What every reader and writer of a run folder finds or says."""
    said = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            said.append(str(work()))
        except UserError as error:
            said.append(str(error))

    def hold() -> None:
        with run.lock():
            run.log({"step": 5, "loss": 1.0})
            run.sample({"step": 5, "text": ""})
            run.add_finding({"step": 5, "kind": "k", "where": "w"})
            run.rewind(4)
            run.add("tokenizer.json", lambda temporary: write_synced(temporary, b"{}"))

    try:
        run = Run.open(path)
    except UserError as error:
        return str(error)
    works = [lambda: run.environment, run.metrics, run.samples, run.findings, run.latest]
    works += [run.examine_checkpoints, lambda: run.read("tokenizer.json"), lambda: read_notes(run)]
    works += [lambda: write_notes(run, ["tag"], "a note"), lambda: run.checkpoint(4).model(), lambda: run.damaged, hold]
    for work in works:
        attempt(work)
    return "\n".join(said)


@pytest.mark.parametrize("name", [*FILES, *CHECKPOINT])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_a_file_outside_destroys_and_shows_nothing(received: Path, secret: Path, name: str, link: Callable):
    (received / name).unlink(missing_ok=True)
    link(secret, received / name)
    said = use_everything(received)
    assert secret.read_text() == SECRET
    if link is os.symlink:
        assert SECRET.strip() not in said


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-000004", "tensorboard"])
def test_a_link_to_a_folder_outside_is_not_entered(received: Path, tmp_path: Path, name: str):
    outside = tmp_path / "outside"
    (received / name).mkdir(exist_ok=True)
    (received / name).rename(outside)
    (outside / ".tmp-precious").mkdir()
    before = sorted(outside.rglob("*"))
    (received / name).symlink_to(outside)
    assert "is a link, not a folder" in use_everything(received)
    assert sorted(outside.rglob("*")) == before


def test_training_on_does_not_truncate_the_target_of_a_lock_that_is_a_link(received: Path, secret: Path):
    (received / ".lock").unlink()
    (received / ".lock").symlink_to(secret)
    one_sentence(regard(received.parents[1], "resume", "one", "--steps", "6"), ".lock", "a link")
    assert secret.read_text() == SECRET


def bind(path: Path) -> None:
    """Leave a socket of that name."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # a short path: the system limits its length


SPECIAL: dict[str, Callable[[Path], object]] = {"a folder": Path.mkdir, "a FIFO": os.mkfifo, "a socket": bind}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", FILES)
def test_no_command_waits_for_what_is_no_file(
    received: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(received.parent)
    (received / name).unlink(missing_ok=True)
    SPECIAL[kind](received / name)
    said = use_everything(received)
    if name not in ("report.html", "notes.json"):  # which no command needs
        assert kind in said or name in said


@pytest.mark.parametrize("kind", ["a folder", "a FIFO"])
@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_checkpoint_with_what_is_no_file_is_damaged(received: Path, name: str, kind: str):
    (received / name).unlink()
    SPECIAL[kind](received / name)
    run = Run.open(received)
    found = run.latest()
    assert found is not None
    assert found.step == 2
    assert "step-000004 is damaged" in run.damaged[0]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
def test_a_device_is_not_read(tmp_path: Path):
    with pytest.raises(UnsafeFile, match="a device, not a plain file"):
        read_plain(Path("/dev/zero"), follow=True)


def test_a_fifo_for_a_config_is_refused_by_commands(received: Path):
    (received / "config.toml").unlink()
    os.mkfifo(received / "config.toml")
    for command in (["info", "runs/one"], ["train", "runs/one/config.toml"]):
        one_sentence(regard(received.parents[1], *command), "config.toml", "a FIFO, not a plain file")


@pytest.mark.parametrize(
    "name", ["config.toml", "environment.json", "tokenizer.json", "MANIFEST.json", "metrics.jsonl"]
)
def test_a_file_of_absurd_size_is_not_read(received: Path, name: str):
    with open(received / name, "ab") as file:
        file.truncate(2**40)  # sparse: it takes no room
    assert "a file of 1,099,511,627,776 bytes" in use_everything(received)


def test_what_a_terminal_would_obey_is_shown_as_text(received: Path):
    assert printable("a\x1b[2Jb\r\x07\x9b\u00e9\n\t\r\n") == "a\\u001b[2Jb\\u000d\\u0007\\u009b\u00e9\n\t\r\n"
    config = received / "config.toml"
    (received / "MANIFEST.json").unlink()
    config.write_text(config.read_text().replace('"text.txt"', '"\\u001b]0;owned\\u0007.txt"'))
    done = regard(received.parents[1], "info", "one")
    assert (done.returncode, "\\u001b]0;owned\\u0007.txt" in done.stdout) == (0, True), done
    config.write_text(config.read_text().replace('kind = "rotary"', 'kind = "\\u001b[31mred"'))
    done = regard(received.parents[1], "generate", "one")
    one_sentence(done, "red")
    for output in (done.stdout, done.stderr):
        assert "\x1b" not in output


def test_files_that_are_opened_for_writing_must_have_one_name(tmp_path: Path, secret: Path):
    os.link(secret, tmp_path / "second")
    os.close(open_plain(tmp_path / "second"))
    with pytest.raises(UnsafeFile, match="another name"):
        open_plain(tmp_path / "second", os.O_RDWR)


def test_the_page_of_runs_shows_no_file_outside(received: Path, secret: Path):
    code = (
        "import sys; from pathlib import Path; from regard.serve.run_library import RunLibrary, is_training\n"
        "library = RunLibrary(Path(sys.argv[1])); (run,) = library.paths()\n"
        "print(library.runs(), library.detail(run), library.metrics(run), is_training(library.path(run)))"
    )
    for name in ("metrics.jsonl", "samples.jsonl", "tokenizer.json", "report.html", "notes.json", ".lock"):
        (received / name).unlink(missing_ok=True)
        (received / name).symlink_to(secret)
    done = python(code, received.parents[1], str(received.parent))
    assert done.returncode == 0, done.stderr
    assert SECRET.strip() not in done.stdout
