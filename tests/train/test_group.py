"""Ranks meet, agree on a name, and name the one that is missing."""

import signal
import threading

import pytest
from rank_kit import free_port, start_ranks
from torch import distributed

from regard.errors import RankLost, UserError
from regard.parallel import group
from regard.parallel.group import Watch, _losses_named, agree, meet
from regard.parallel.world import World

PROGRAM = "meeting_rank.py"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_all_ranks_take_the_name_of_rank_0_and_the_one_that_stops_is_named():
    children = start_ranks(2, PROGRAM, "5")
    try:
        said, errors = children[0].communicate(timeout=600)
    finally:
        children[1].kill()
    assert said.splitlines() == ["chosen by rank 0", "[3.0]"]
    assert errors.splitlines()[-1].startswith("regard: rank 1 has not answered for 4.5 seconds; ")
    assert children[0].returncode == RankLost.exit_code
    assert children[1].communicate()[0].splitlines() == ["chosen by rank 0", "[3.0]"]


class Ended(Exception):
    """Raised instead of ending the process."""


@pytest.fixture
def watch(monkeypatch):
    """A function that makes a watch of rank 0 and returns what it says, once it ends the process."""
    said: list[str] = []
    over = threading.Event()

    def end(self: Watch, who: str) -> None:
        said.append(who)
        over.set()
        self._over.set()

    monkeypatch.setattr(Watch, "_end", end)

    def run(store: distributed.Store, size: int, entered: int = 0) -> str:
        with Watch(store, World(0, size), 0.5) as watch:
            watch.entered = entered
            assert over.wait(60)
        return said[0]

    return run


def test_a_rank_that_never_wrote_its_counts_is_named(watch):
    assert watch(distributed.HashStore(), 2) == "rank 1"


def test_all_silent_ranks_are_named(watch):
    store = distributed.HashStore()
    for rank in (1, 2):
        store.set(f"counts-{rank}", "7 3")
    assert watch(store, 3) == "each of the ranks 1, 2"


def test_a_rank_whose_main_thread_hangs_is_named(watch):
    """It still writes, but has entered fewer reductions than this rank."""
    store, over = distributed.HashStore(), threading.Event()

    def alive() -> None:
        written = 0
        while not over.wait(0.01):
            written += 1
            store.set("counts-1", f"{written} 4")
            store.set("counts-2", f"{written} 5")

    thread = threading.Thread(target=alive)
    thread.start()
    try:
        assert watch(store, 3, entered=5) == "rank 1"
    finally:
        over.set()
        thread.join()


def test_a_rank_that_is_a_little_later_after_a_long_step_is_not_missing(watch):
    """Nobody enters a reduction for many ticks, then this rank does, and the other one two ticks later."""
    store, over = distributed.HashStore(), threading.Event()
    with Watch(store, World(0, 2), 0.5) as waiting:

        def alive() -> None:
            written, entered, later = 0, 0, 4
            while not over.wait(0.5 / group.TICKS / 2):
                written += 1
                if written == 3 * group.TICKS:
                    waiting.entered = 1
                entered += written == 3 * group.TICKS + later
                store.set("counts-1", f"{written} {entered}")
                if written == 4 * group.TICKS:
                    over.set()

        thread = threading.Thread(target=alive)
        thread.start()
        thread.join(60)
        assert not waiting._over.is_set()


def test_a_store_that_does_not_answer_is_named(watch):
    class Deaf(distributed.HashStore):
        def set(self, key, value):
            raise RuntimeError("connection reset")

    assert "on the machine of rank 0" in watch(Deaf(), 2)


def test_ranks_that_never_start_are_named(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(RankLost, match=r"each of the ranks 1, 2 did not start within 0\.5 seconds"):
        meet(0, 3, 0.5)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(RankLost, match="rank 0 was not there at MASTER_ADDR"):
        meet(1, 3, 0.5)


def test_the_address_is_asked_for(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="MASTER_ADDR is not"):
        meet(0, 2, 0.25)


def test_a_failure_of_rank_0_ends_the_others(monkeypatch):
    store = distributed.HashStore()
    monkeypatch.setattr(group, "meet", lambda *_: store)

    def fail() -> str:
        raise UserError("the name is taken")

    with pytest.raises(UserError, match="the name is taken"):
        agree(World(0, 2), 1.0, fail)
    with pytest.raises(UserError, match="rank 0 could not start"):
        agree(World(1, 2), 1.0, fail)


def test_only_lost_connections_are_called_so():
    with pytest.raises(RankLost, match=r"another rank .* \(Connection closed by peer\)"), _losses_named():
        raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(RuntimeError, match="an error of the model"), _losses_named():
        raise RuntimeError("an error of the model")
