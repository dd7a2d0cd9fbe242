"""Several processes for one run: `--processes N`, and what torchrun and SLURM tell each process."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from regard.commands import options_of
from regard.config.command_line import to_arguments
from regard.errors import RankLost, UserError
from regard.runs.waiting import notice

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from regard.commands.train import ObserverOptions

INTERRUPTED = 130
#: Exit codes that a restart would not change: a mistake of the user, and a run that was told to stop.
FINAL = (UserError.exit_code, INTERRUPTED)
#: Tells a process when its launcher was called, in seconds of `time.time`.
LAUNCHED = "REGARD_LAUNCHED"


def command_began() -> float:
    """The `time.perf_counter()` at which this command was called, or the launcher that has started this process.

    A budget in seconds is that of the command that the user has typed, so it includes what precedes the training.
    """
    try:
        since = time.time() - float(os.environ[LAUNCHED])
    except (KeyError, ValueError):
        since = 0.0
    return time.perf_counter() - max(since, 0.0)


def adopt_slurm() -> None:
    """Set the variables that torchrun would set, in a process that `srun` has started."""
    os.environ.update(slurm_variables(os.environ))


def slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of one of several tasks of `srun`; else nothing.

    A batch script itself has SLURM_PROCID too, but no SLURM_STEP_ID: it is one process, whatever --ntasks says.
    """
    if "RANK" in environ or "SLURM_STEP_ID" not in environ or environ.get("SLURM_NTASKS", "1") == "1":
        return {}
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_NODELIST", "SLURM_JOB_ID")
    if absent := [name for name in names if not environ.get(name)]:
        raise UserError(f"SLURM_NTASKS is set, but {absent[0]} is not; start with srun, or unset SLURM_NTASKS")
    port = 15000 + int(re.sub(r"\D", "", environ["SLURM_JOB_ID"]) or 0) % 10000  # jobs that share a machine differ
    rendezvous = {"MASTER_ADDR": first_host(environ["SLURM_JOB_NODELIST"]), "MASTER_PORT": str(port)}
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_NTASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        **{name: environ.get(name, value) for name, value in rendezvous.items()},
    }


def first_host(nodes: str) -> str:
    """The first host of a list in SLURM's notation.

    >>> first_host("gpu[07-09,12],login"), first_host("rack[1,3]-n[01-16]")
    ('gpu07', 'rack1-n01')
    """
    each_first = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", nodes)
    return each_first.partition(",")[0]


def launch_id(environ: Mapping[str, str]) -> str | None:
    """What identifies all starts of this job: that of torchrun (--rdzv-id), or SLURM's job and step."""
    if (name := environ.get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return f"torchrun {name}"
    if {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environ.keys():
        return f"slurm {environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    return None


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or SLURM has started this job before."""
    return any(environ.get(name, "0") != "0" for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def launch(
    command: str,
    options: ObserverOptions,
    keys: Mapping[str, object],
    lanes: int | None,
    later: ObserverOptions | None = None,
) -> int:
    """Run `regard COMMAND` on `options.processes` processes of this machine, by torchrun's elastic launcher.

    A rank that fails ends all of them, and the run continues from its last checkpoint. torchrun's own restarts would
    also repeat a mistake of the user, so here each start is one launch. `lanes`: those of the run, None in a new one
    without a number. `later`: the options of each start but the first, if they differ.
    """
    began = time.time()
    from regard.parallel.world import World

    World(0, options.processes, layout=options.layout.of(options.processes)).lanes(lanes)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    count, identity = options.processes, uuid.uuid4().hex
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(options.timeout)))  # seconds to save in
    for start in range(options.restarts + 1):
        each = replace(later or options if start else options, processes=1, restarts=0)
        arguments = to_arguments(options_of(command), each, keys)
        config = LaunchConfig(
            1, 1, count, run_id=identity, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
        )
        debug = ["--debug"] if "--debug" in sys.argv else []
        os.environ[LAUNCHED] = repr(began if start == 0 else time.time())
        try:
            elastic_launch(config, sys.executable)("-m", "regard", command, *arguments, *debug)
            return 0
        except SignalException:
            return INTERRUPTED
        except ChildFailedError as error:
            codes = [failure.exitcode for failure in error.failures.values()]
            if final := [code for code in codes if code in FINAL]:
                return final[0]  # that process has printed its own message
            ended = _first(error.failures)
        finally:
            del os.environ[LAUNCHED]
        if start < options.restarts:
            notice(f"{ended}; restart {start + 1} of {options.restarts}, from the last checkpoint")
    raise RankLost(f"{ended}, after {options.restarts} restarts; its output above says why")


def check_processes(options: ObserverOptions) -> None:
    """Refuse what no process could train with, before any is started."""
    if options.timeout <= 0:
        raise UserError(f"--timeout must be more than 0 seconds, not {options.timeout:g}")
    options.check_at_least_one("processes")
    if options.restarts < 0:
        raise UserError(f"--restarts must be at least 0, not {options.restarts}")
    if options.processes > 1 and "RANK" in os.environ:
        raise UserError("--processes starts the processes, but RANK is set: this is one already; leave out --processes")


def _first(failures: Mapping[int, ProcessFailure]) -> str:
    """How the first rank ended: one that a signal ended comes before those that lost their connection to it.

    The launcher itself ends the others by SIGTERM.
    """
    codes = {each: failure.exitcode for each, failure in failures.items()}
    rank = min(codes, key=lambda each: (codes[each] == -signal.SIGTERM, codes[each] >= 0, failures[each].timestamp))
    code = codes[rank]
    return (
        f"rank {rank} was ended by {signal.Signals(-code).name}" if code < 0 else f"rank {rank} ended with code {code}"
    )
