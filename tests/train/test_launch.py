"""What a launcher tells a process, and runs that are created or continued. test_launched_ranks starts real ones."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli import main
from regard.commands import launch, options_of
from regard.commands.launch import first_host, is_restart, launch_id, slurm_variables
from regard.config.command_line import parse, read_options, to_arguments
from regard.errors import RankLost, UserError
from regard.parallel.layout import Layout
from regard.runs import Run
from warm_process import python

TASK = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_ID": "123456",
}
TINY = """
[model]
kind = "gpt"
context = 8
layers = 1
heads = 1
width = 8
[data]
kind = "text"
path = "text.txt"
batch = 2
[train]
steps = 2
evaluate_every = "none"
device = "cpu"
"""


def test_a_task_of_srun_gets_the_variables_of_torchrun():
    assert slurm_variables(TASK) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "18456",
    }
    assert slurm_variables({**TASK, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7"})["MASTER_ADDR"] == "10.0.0.1"


@pytest.mark.parametrize("changed", [{"RANK": "0"}, {"SLURM_NTASKS": "1"}, {"SLURM_STEP_ID": None}])
def test_torchrun_a_single_task_and_the_batch_script_are_left_alone(changed):
    environ = {name: value for name, value in {**TASK, **changed}.items() if value is not None}
    assert slurm_variables(environ) == {}


def test_a_missing_variable_of_slurm_is_named():
    with pytest.raises(UserError, match="SLURM_LOCALID is not"):
        slurm_variables({name: value for name, value in TASK.items() if name != "SLURM_LOCALID"})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("gpu[07-09,12],login", "gpu07"),
        ("n[3,5-7]", "n3"),
        ("rack[1,3]-n[01-16].net", "rack1-n01.net"),
    ],
)
def test_the_first_host_of_a_list(nodes, host):
    assert first_host(nodes) == host


def test_what_identifies_a_job():
    assert launch_id({"TORCHELASTIC_RUN_ID": "none"}) is None  # torchrun without --rdzv-id
    assert launch_id({**TASK, "TORCHELASTIC_RUN_ID": "abc"}) == "torchrun abc"
    assert launch_id(TASK) == "slurm 123456.0"
    assert is_restart({"SLURM_RESTART_COUNT": "1"})
    assert is_restart({"TORCHELASTIC_RESTART_COUNT": "2"})
    assert not is_restart({"TORCHELASTIC_RESTART_COUNT": "0"})


WORDS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1, max_size=8)


@given(
    st.fixed_dictionaries(
        {"recipe": st.sampled_from(["shakespeare", "my.toml"])},
        optional={
            "name": WORDS,
            "seed": st.integers(0, 9),
            "again": st.just(True),
            "timeout": st.floats(0.5, 1e9),
            "layout": st.builds(Layout, shard=st.none() | st.integers(1, 9), context=st.integers(1, 9)),
            "with_": st.lists(WORDS, max_size=2).map(tuple),
        },
    ),
    st.dictionaries(st.sampled_from(["train.steps", "model", "train.compile"]), st.one_of(WORDS, st.just(False))),
)
def test_passed_on_arguments_are_read_as_the_same_options_and_keys(values, keys):
    table = options_of("train")
    options = table.cls(**values)
    found = parse(to_arguments(table, options, keys), table)
    read = read_options(table, found, "regard train")
    assert {**vars(read), "with_": tuple(map(str, read.with_))} == vars(options)
    assert found.keys == keys


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a text and a config of two steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 20)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def test_again_creates_then_continues_and_refuses_another_config(folder, capsys):
    again = ["train", "tiny.toml", "--name", "a", "--again"]
    assert main(again) == 0
    run = Run.open(folder / "runs" / "a")
    assert run.steps() == [2]
    before = run.file("metrics.jsonl").read_text()
    assert main(again) == 0  # it is finished: nothing is left to do
    assert run.file("metrics.jsonl").read_text() == before
    capsys.readouterr()
    assert main([*again, "--model.width", "16"]) == UserError.exit_code
    assert "was started with model.width = 8, not 16; give the same options" in capsys.readouterr().err
    assert main([*again, "--train.seconds", "9"]) == UserError.exit_code
    assert "train.seconds = none, not 9" in capsys.readouterr().err
    assert main(["train", "tiny.toml", "--name", "a"]) == UserError.exit_code
    assert "there is already a run" in capsys.readouterr().err
    assert main(["train", "tiny.toml", "--again"]) == UserError.exit_code
    assert "--again needs --name" in capsys.readouterr().err


def test_again_begins_a_run_that_was_killed_before_its_first_checkpoint(folder):
    assert main(["train", "tiny.toml", "--name", "whole"]) == 0
    assert main(["train", "tiny.toml", "--name", "a"]) == 0
    run = Run.open(folder / "runs" / "a")
    (checkpoint,) = (run.path / "checkpoints").iterdir()
    checkpoint.rename(folder / "lost")
    assert main(["train", "tiny.toml", "--name", "a", "--again"]) == 0
    ends = [Run.open(folder / "runs" / name).checkpoint(2).model() for name in ("whole", "a")]
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[0])
    assert [record["step"] for record in run.metrics()] == [
        record["step"] for record in Run.open(folder / "runs" / "whole").metrics()
    ]


def test_a_restart_continues_only_the_run_of_its_own_job(folder, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert main(["train", "tiny.toml"]) == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main(["train", "tiny.toml"]) == 0
    assert [path.name for path in (folder / "runs").iterdir()] == ["tiny-1"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert main(["train", "tiny.toml", "--name", "tiny-1"]) == UserError.exit_code
    assert "there is already a run" in capsys.readouterr().err
    assert main(["train", "tiny.toml"]) == 0
    assert Run.open(folder / "runs" / "tiny-2").environment["launch"] == "torchrun another"


def test_a_run_that_does_not_record_its_options_is_not_guessed(folder, capsys):
    assert main(["train", "tiny.toml", "--name", "a"]) == 0
    path = folder / "runs" / "a" / "environment.json"
    described = json.loads(path.read_text())
    del described["asked"]
    path.write_text(json.dumps(described))
    assert main(["train", "tiny.toml", "--name", "a", "--again"]) == UserError.exit_code
    assert "continue it: regard resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--processes", "0"], "--processes must be at least 1"),
        (["--processes", "2", "--restarts", "-1"], "--restarts must be at least 0"),
        (["--processes", "2", "--again"], "--again needs --name"),
        (["--processes", "2", "--name", "a b"], "cannot name a run"),
        (["--processes", "2", "--model.widht", "8"], "model.width"),
        (["--timeout", "0"], "--timeout must be more than 0"),
        (["--processes", "3", "--train.lanes", "4"], "4 lanes, which 3 parts of a batch cannot share"),
        (["--processes", "3", "--layout.tensor", "2"], "needs 2 processes, but this is 3 processes"),
        (["--layout.shard", "2"], "needs 2 processes, but this is 1 process"),
        (["--layout.shrad", "2"], "did you mean --layout.shard?"),
        (["--layout.context", "0"], "--layout.context must be at least 1"),
    ],
)
def test_mistakes_are_reported_before_a_process_starts(folder, capsys, arguments, problem):
    assert main(["train", "tiny.toml", *arguments]) == UserError.exit_code
    assert problem in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_a_process_of_torchrun_starts_no_others(folder, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "tiny.toml", "--processes", "2"]) == UserError.exit_code
    assert "RANK is set" in capsys.readouterr().err


def test_a_budget_in_seconds_counts_from_the_call_of_the_launcher(monkeypatch):
    monkeypatch.setenv(launch.LAUNCHED, repr(time.time() - 1000))
    assert time.perf_counter() - launch.command_began() >= 1000
    for wrong in ("soon", repr(time.time() + 1000)):  # and never from a time to come
        monkeypatch.setenv(launch.LAUNCHED, wrong)
        began = time.perf_counter()
        assert began <= launch.command_began() <= time.perf_counter()


def launched(monkeypatch, codes):
    """The arguments of each start of processes, which ends with the next of the codes."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.launcher import api

    given = []

    def start(*arguments: str) -> None:
        assert float(os.environ[launch.LAUNCHED]) <= time.time()
        given.append(arguments)
        if exitcode := codes[len(given) - 1]:
            failed = ProcessFailure(local_rank=1, pid=1, exitcode=exitcode, error_file="none")
            raise ChildFailedError("regard", {1: failed})

    monkeypatch.setattr(api, "elastic_launch", lambda *_: start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    monkeypatch.setattr(launch, "notice", print)
    return given


@pytest.mark.parametrize(
    ("codes", "starts", "code"),
    [([1, 0], 2, 0), ([-9, 1, 0], 3, 0), ([2], 1, 2), ([130], 1, 130), ([1, 1, 1], 3, RankLost.exit_code)],
)
def test_a_failure_is_restarted_unless_a_restart_changes_nothing(folder, monkeypatch, capsys, codes, starts, code):
    given = launched(monkeypatch, codes)
    assert main(["train", "tiny.toml", "--processes", "2", "--restarts", "2", "--name", "a"]) == code
    assert ["--again" in arguments for arguments in given] == [False, True, True][:starts]
    assert all("--name=a" in arguments and "tiny.toml" in arguments for arguments in given)
    assert launch.LAUNCHED not in os.environ  # a later training of this process counts from its own start
    said = capsys.readouterr()
    if codes[0] == -9:
        assert "rank 1 was ended by SIGKILL; restart 1 of 2" in said.out
    if code == RankLost.exit_code:
        assert "rank 1 ended with code 1, after 2 restarts" in said.err


def test_a_rank_that_the_launcher_has_ended_is_not_named():
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    def first(*codes: int) -> str:
        return launch._first({rank: ProcessFailure(rank, 1, code, "none") for rank, code in enumerate(codes)})

    assert first(-15, 1) == "rank 1 ended with code 1"
    assert first(-15, -9, 1) == "rank 1 was ended by SIGKILL"
    assert first(-15, -15) == "rank 0 was ended by SIGTERM"


def test_a_run_is_resumed_on_several_processes_which_are_restarted(folder, monkeypatch, capsys):
    assert main(["train", "tiny.toml", "--name", "a"]) == 0
    given = launched(monkeypatch, [-9, 0])
    many = ["resume", "a", "--steps", "4", "--processes", "2"]
    assert main([*many, "--layout.tensor", "2"]) == 0
    expected = ("-m", "regard", "resume", "runs/a", "--layout.tensor=2", "--restarts=0", "--steps=4")
    assert [sorted(arguments) for arguments in given] == [sorted(expected)] * 2
    assert main(many) == UserError.exit_code
    assert "the run has 1 lane, which 2 parts" in capsys.readouterr().err
    assert main(["resume", "a", "--timeout", "0"]) == UserError.exit_code


def test_processes_may_start_from_a_trained_model_of_which_a_part_is_trained(folder, monkeypatch):
    assert main(["train", "tiny.toml", "--name", "a"]) == 0
    given = launched(monkeypatch, [0])
    adapted = ["train", "tiny.toml", "--init", "runs/a", "--train.adapt", "frozen", "--processes", "2"]
    assert main(adapted) == 0
    assert [arguments.count("--init=runs/a") for arguments in given] == [1]


def test_one_process_imports_no_launcher(folder):
    names = (
        "torch.distributed.launcher",
        "torch.distributed.run",
        "torch.distributed.elastic.agent",
    )
    code = f"""
import sys
from regard.cli import main
assert main(["train", "tiny.toml"]) == 0
print([name for name in sys.modules if name.startswith({names})])
"""
    done = python(code, folder)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
