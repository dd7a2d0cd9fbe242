"""Creating, naming, opening and locking a run."""

import json
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.runs import Run, environment, schema
from regard.runs.schema import SCHEMA, migrate

CONFIG = 'seed = 1\n\n[model]\nkind = "gpt"\n'


def test_a_new_run_holds_its_config_and_environment(tmp_path: Path):
    run = Run.create(tmp_path / "deep" / "runs", "a.b_c-1", CONFIG, {"torch": "2.13"})
    assert run.path == tmp_path / "deep" / "runs" / "a.b_c-1"
    assert run.name == "a.b_c-1"
    text = (run.path / "config.toml").read_text()
    assert text == f"schema = {SCHEMA}\n{CONFIG}"
    again = Run.open(run.path)
    assert again.config == run.config == {"seed": 1, "model": {"kind": "gpt"}}
    assert again.environment["torch"] == "2.13"
    assert again.metrics() == again.samples() == again.steps() == []
    assert again.latest() is None
    assert [path.name for path in run.path.parent.iterdir()] == ["a.b_c-1"]  # nothing temporary is left


def test_a_taken_name_is_refused_with_the_fix_and_nothing_is_changed(run: Run):
    run.log({"step": 1})
    before = (run.path / "config.toml").read_bytes()
    with pytest.raises(UserError, match=r"already a run .*first.*--name.*regard resume"):
        Run.create(run.path.parent, "first", 'other = "config"\n', {})
    assert (run.path / "config.toml").read_bytes() == before
    assert run.metrics() == [{"step": 1}]
    assert [path.name for path in run.path.parent.iterdir()] == ["first"]


def test_a_file_of_that_name_is_refused_too(tmp_path: Path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match="already"):
        Run.create(tmp_path, "notes", CONFIG, {})
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "-x", "a b", "é", "a\n", "x" * 101])
def test_bad_names_are_refused(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="cannot name a run"):
        Run.create(tmp_path, name, CONFIG, {})
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_runs_are_numbered(tmp_path: Path):
    names = [Run.create(tmp_path, None, CONFIG, {}, prefix="tiny").name for _ in range(2)]
    (tmp_path / "tiny-7").mkdir()
    (tmp_path / "tiny-7" / "x").touch()
    (tmp_path / "tiny-x").mkdir()
    names.append(Run.create(tmp_path, None, CONFIG, {}, prefix="tiny").name)
    names.append(Run.create(tmp_path, None, CONFIG, {}).name)
    assert names == ["tiny-1", "tiny-2", "tiny-8", "run-1"]


def test_many_starters_at_once_all_get_their_own_run(tmp_path: Path):
    names: list[str] = []
    barrier = threading.Barrier(8)

    def start(index: int) -> None:
        barrier.wait()
        names.extend(Run.create(tmp_path, None, f"index = {index}\n", {}).name for _ in range(3))

    threads = [threading.Thread(target=start, args=(index,)) for index in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they do collide
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(names) == sorted(f"run-{number}" for number in range(1, 25))
    written = [Run.open(tmp_path / name).config["index"] for name in names]
    assert sorted(written) == sorted(list(range(8)) * 3)


def test_a_config_that_is_not_toml_is_the_callers_mistake(tmp_path: Path):
    for text in ("a = \n", "schema = 3\n"):
        with pytest.raises(tomllib.TOMLDecodeError):
            Run.create(tmp_path, "x", text, {})
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_not_there_names_the_neighbours(run: Run):
    with pytest.raises(UserError, match=r"no run .*frist; in .* there are: first"):
        Run.open(run.path.parent / "frist")
    with pytest.raises(UserError, match="give the folder of a run"):
        Run.open(run.path / "nowhere" / "x")


def test_a_missing_or_damaged_config_is_explained(run: Run):
    config = run.path / "config.toml"
    for damage, said in [
        (b"schema = 1\nseed = \n", "damaged.*line 2"),
        (b"schema = 1\n\xff\xfe", "damaged"),
        (b"seed = 1\n", "'schema' is None"),
        (b"schema = true\n", "'schema' is True"),
        (b"schema = 0\n", "'schema' is 0"),
        (b"", "'schema' is None"),
    ]:
        config.write_bytes(damage)
        with pytest.raises(UserError, match=said):
            Run.open(run.path)
    config.unlink()
    with pytest.raises(UserError, match=r"no config\.toml"):
        Run.open(run.path)


def test_a_newer_schema_is_refused_with_the_version_that_is_needed(run: Run):
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace(f"schema = {SCHEMA}", f"schema = {SCHEMA + 1}"))
    (run.path / "environment.json").write_text('{"regard": "7.8.9"}')
    with pytest.raises(UserError, match=rf"schema {SCHEMA + 1}.*install regard 7\.8\.9 or newer"):
        Run.open(run.path)
    (run.path / "environment.json").unlink()
    with pytest.raises(UserError, match="install a newer regard"):
        Run.open(run.path)


def test_an_older_schema_goes_through_every_migration(monkeypatch: pytest.MonkeyPatch):
    steps = {1: lambda d: {**d, "trail": d["trail"] + [1]}, 2: lambda d: {**d, "trail": d["trail"] + [2]}}
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "SCHEMA", 3)
    assert migrate({"schema": 1, "trail": []}, "c") == {"trail": [1, 2]}
    assert migrate({"schema": 2, "trail": []}, "c") == {"trail": [2]}
    monkeypatch.setattr(schema, "SCHEMA", 5)
    with pytest.raises(UserError, match="no longer"):
        migrate({"schema": 3, "trail": []}, "c")


def test_the_config_can_be_frozen_anew(run: Run):
    run.replace_config("seed = 2\n")
    assert run.config == Run.open(run.path).config == {"seed": 2}
    with pytest.raises(tomllib.TOMLDecodeError):
        run.replace_config("seed = \n")
    assert Run.open(run.path).config == {"seed": 2}


def test_unwritable_places_are_explained(tmp_path: Path):
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="choose another folder"):
            Run.create(root, "x", CONFIG, {})


def test_reading_a_run_does_not_import_torch(run: Run):
    run.log({"step": 1, "loss": 2.0})
    code = (
        "import sys; from pathlib import Path; from regard.runs import Run\n"
        "run = Run.open(Path(sys.argv[1]))\n"
        "assert run.metrics() and run.latest() is None and run.config; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True)


def test_the_environment_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.chdir(tmp_path)
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["cpus"] == os.cpu_count()
    assert found["device"]
    assert found["git"] is None


def test_the_environment_names_the_commit_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    assert environment()["git"] is None  # a repository without a commit
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    assert environment()["git"] == commit
    (tmp_path / "file").write_text("two")
    assert environment()["git"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert environment()["git"] is None
