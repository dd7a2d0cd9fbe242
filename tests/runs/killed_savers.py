"""A program for the tests: kills savers with SIGKILL, and checks after each death that the run is whole.

    python killed_savers.py RUN random ROUNDS SEED   savers die at random moments
    python killed_savers.py RUN every 0 0            a saver dies before each file operation of a save

Savers are forked so that torch is imported once. It prints a JSON object of counts, or dies of an assertion.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from regard.runs import Run

FILE_OPERATIONS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.truncate",
}


def save(run: Run, step: int, attempt: int, keep: int) -> None:
    value = float(1000 * step + attempt)
    model = {"w": torch.full((300, 100), value), "tied": torch.full((4,), value)}
    model["again"] = model["tied"]
    run.log({"step": step, "loss": value})
    run.save(step, model, {"m": torch.full((1000,), -value)}, {"value": value, "step": step}, keep=keep)


def check(run: Run) -> tuple[int, float]:
    """The newest checkpoint is whole, its parts belong together, and nothing under a real name is damaged."""
    found = run.latest()
    assert found is not None, run.damaged
    for step in run.steps():
        run.checkpoint(step)
        assert run.damaged == [], run.damaged
    value = found.state["value"]
    model = found.model()
    assert found.state["step"] == found.step
    assert set(model) == {"w", "tied", "again"}
    assert all(bool((tensor == value).all()) for tensor in model.values())
    assert bool((found.optimizer()["m"] == -value).all())
    # what was logged before a checkpoint is there when the checkpoint is
    assert found.step in {record["step"] for record in run.metrics()}
    return found.step, value


def unfinished(run: Run) -> int:
    return sum(path.name.startswith(".tmp-") for path in (run.path / "checkpoints").iterdir())


def fork_saver(work) -> tuple[int, int]:
    """Start `work(announce)` in a child; returns its process id and the pipe of what it announced."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            work(lambda number: os.write(writer, b"%d\n" % number))
        except BaseException as error:  # a saver may only die of the signal
            os.write(writer, f"failed: {error!r}\n".encode())
        os._exit(0)
    os.close(writer)
    return child, reader


def announced(reader: int) -> list[int]:
    with open(reader, encoding="utf-8") as file:
        return [int(line) for line in file.read().splitlines()]


def after_the_death(path: Path) -> tuple[Run, int]:
    """What a resume does first: lock (which sweeps), latest, rewind."""
    run = Run.open(path)
    check(run)  # also before the sweep, as a reader would see it
    with run.lock():
        assert unfinished(run) == 0
        step, _ = check(run)
        run.rewind(step)
        assert max(record["step"] for record in run.metrics()) == step
    return run, step


def die_at_random_moments(path: Path, rounds: int, seed: int) -> dict[str, int]:
    moments = random.Random(seed)
    during_a_save = saves = 0
    step = 1
    span = 0.01  # seconds within which a saver dies; follows the disk's speed, to about one whole save a life
    for round_number in range(rounds):
        keep = moments.choice([1, 2])
        again = moments.random() < 0.5  # start with the step that is there, as a resumed run's last save may

        def work(announce, start=step, keep=keep, again=again, round_number=round_number) -> None:
            run = Run.open(path)
            with run.lock():
                announce(0)
                for number in range(start if again else start + 1, start + 10_000):
                    save(run, number, round_number % 999, keep)
                    announce(number)

        child, reader = fork_saver(work)
        alive = os.read(reader, 2)
        assert alive == b"0\n", alive
        time.sleep(moments.uniform(0.0, span))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        whole = announced(reader)
        saves += len(whole)
        span *= 0.8 if whole else 1.25
        during_a_save += unfinished(Run.open(path)) > 0
        before = step
        _, step = after_the_death(path)
        # nothing that `save` returned from is lost, and at most the save under way was finished
        assert step in (({whole[-1], whole[-1] + 1}) if whole else {before, before + 1}), (
            step,
            whole,
            before,
        )
    return {"during_a_save": during_a_save, "saves": saves, "rounds": rounds}


def die_before_every_operation(path: Path) -> dict[str, int]:
    rounds = 0
    step = 1
    for again in (False, True):
        for deadly in range(1, 1000):
            next_step = step if again else step + 1

            def work(announce, next_step=next_step, deadly=deadly) -> None:
                run = Run.open(path)
                with run.lock():
                    left = deadly

                    def hook(event: str, arguments: tuple) -> None:
                        nonlocal left
                        if event in FILE_OPERATIONS:
                            left -= 1
                            if left == 0:
                                os.kill(os.getpid(), signal.SIGKILL)

                    sys.addaudithook(hook)
                    save(run, next_step, deadly, keep=1)
                    left = 0
                announce(next_step)

            child, reader = fork_saver(work)
            _, status = os.waitpid(child, 0)
            whole = announced(reader)
            rounds += 1
            before = step
            _, step = after_the_death(path)
            assert step in ({next_step} if whole else {before, next_step})
            if not os.WIFSIGNALED(status):
                assert whole == [next_step]
                break
        else:
            raise AssertionError("a save never ended")
    return {"rounds": rounds}


def main() -> None:
    path, how, rounds, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    save(Run.open(path), 1, 0, keep=2)
    counts = die_at_random_moments(path, rounds, seed) if how == "random" else die_before_every_operation(path)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
