"""Owners, binders and directories are killed and started again: traffic goes on, and what is missing is counted exactly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.wiring.processes import BURST, Process


class Place:
    """Processes around one directory, all ended with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.port = free_port()

    def run(self, script: str, name: str = "", **more: Any) -> Process:
        """Start one."""
        return self._stack.enter_context(Process(self._folder, script, self.port, name=name, **more))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Where processes are started."""
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def got(first: int, last: int) -> list[str]:
    """What a sink writes of messages in order."""
    return [f"got {number}" for number in range(first, last)]


BINDERS = ["source", "sink", "binder"]


def wired(place: Place, binder: str) -> tuple[Process, Process]:
    """A source and a sink, bound by one of three."""
    place.run("directory").ready()
    bound: dict[str, Any] = {"bind": ("E", "Q")}
    source = place.run("source", "E", **(bound if binder == "source" else {}))
    sink = place.run("sink", "Q", **(bound if binder == "sink" else {}))
    if binder == "binder":
        place.run("binder", **bound).ready()
    source.ready()
    sink.ready()
    source.until(lambda: source.pipes and source.pipes[0][2], "its pipe")
    return source, sink


@pytest.mark.parametrize("binder", BINDERS)
def test_sink_killed(place: Place, binder: str) -> None:
    """A queue's owner that is killed with messages on their way is told, as it comes back elsewhere, how many it misses."""
    source, sink = wired(place, binder)
    source.burst(1)
    sink.wait_events(BURST)
    source.until(lambda: source.pipes[0][1] == BURST, "hearing that all was taken")
    sink.signal(signal.SIGSTOP)
    source.burst(2)
    source.until(lambda: source.pipes[0][0] == 2 * BURST, "sending all of it")
    sink.kill()
    source.until(lambda: not source.pipes[0][2], "missing its pipe")
    source.burst(3)
    again = place.run("sink", "Q", **({"bind": ("E", "Q")} if binder == "sink" else {}))
    source.burst(4)
    again.wait_events(1 + 2 * BURST)
    assert again.events == [f"gap {BURST} False", *got(2 * BURST, 4 * BURST)]


@pytest.mark.parametrize("binder", BINDERS)
def test_source_killed(place: Place, binder: str) -> None:
    """An exchange's owner that is killed and started anew elsewhere is wired again; the queue sees where it began anew."""
    source, sink = wired(place, binder)
    source.burst(1)
    sink.wait_events(BURST)
    source.kill()
    again = place.run("source", "E", **({"bind": ("E", "Q")} if binder == "source" else {})).ready()
    again.until(lambda: again.pipes and again.pipes[0][2], "its pipe")
    again.burst(1)
    sink.wait_events(2 * BURST + 1)
    assert sink.events == [*got(0, BURST), "gap 0 True", *got(0, BURST)]


def test_binder_killed(place: Place) -> None:
    """A binding that a third process made, and makes again after it was killed, goes on without a gap."""
    place.run("directory").ready()
    source, sink = place.run("source", "E").ready(), place.run("sink", "Q").ready()
    binder = place.run("binder", bind=("E", "Q")).ready()
    source.burst(1)
    binder.kill()
    source.burst(2)
    place.run("binder", bind=("E", "Q")).ready()
    source.burst(3)
    sink.wait_events(3 * BURST)
    assert sink.events == got(0, 3 * BURST)


def test_directory_killed(place: Place) -> None:
    """With the directory gone what is wired goes on; when it is back it knows all names, and new bindings can be made."""
    names = place.run("directory").ready()
    source, sink = place.run("source", "E").ready(), place.run("sink", "Q", bind=("E", "Q")).ready()
    source.burst(1)
    names.kill()
    source.burst(2)
    sink.wait_events(2 * BURST)
    late = place.run("sink", "L", bind=("E", "L"))
    place.run("directory").ready()
    late.ready()
    source.burst(3)
    late.wait_events(BURST)
    sink.wait_events(3 * BURST)
    assert sink.events == got(0, 3 * BURST)
    assert late.events == got(2 * BURST, 3 * BURST)


#: Each is first, in the middle and last in one of three; the others wait for the night.
ORDERS = [
    pytest.param(order, id="-".join(order), marks=pytest.mark.nightly if at in {1, 2, 5} else ())
    for at, order in enumerate(permutations(("directory", "source", "sink")))
]


@pytest.mark.parametrize("order", ORDERS)
def test_start_order(place: Place, order: tuple[str, ...]) -> None:
    """In whatever order they start, they find one another."""
    started = {}
    for script in order:
        name = {"directory": "", "source": "E", "sink": "Q"}[script]
        started[script] = place.run(script, name, bind=("E", "Q") if script == "sink" else ())
    started["sink"].ready()
    started["source"].ready().burst(1)
    started["sink"].wait_events(BURST)
    assert started["sink"].events == got(0, BURST)


def test_balancing_sink_killed(place: Place) -> None:
    """A balancing exchange gives nothing to an owner that is gone; what waited for it goes to the others."""
    place.run("directory").ready()
    one, two = place.run("sink", "1").ready(), place.run("sink", "2").ready()
    source = place.run("source", "E", style="balance").ready()
    for name in ("1", "2"):
        place.run("binder", bind=("E", name)).ready()
    source.burst(1)
    source.until(lambda: sum(taken for _, taken, _ in source.pipes) == BURST, "hearing that all was taken")
    one.kill()
    source.until(lambda: [up for _, _, up in source.pipes].count(False) == 1, "missing a pipe")
    source.burst(2)
    two.wait_events(BURST // 2 + BURST)
    both = sorted(int(line.split()[1]) for line in [*one.events, *two.events])
    assert both == list(range(2 * BURST))


@pytest.mark.parametrize("limit", [1, 50])
def test_worker_killed(place: Place, limit: int) -> None:
    """What a worker that is killed had and was not done with is counted and told, and no more than it was given at a time."""
    place.run("directory").ready()
    source = place.run("source", "E", style="balance", limit=limit).ready()
    names = ("stuck", "1", "2")
    stuck, *others = workers = [place.run("worker", name, bind=("E", name), limit=limit).ready() for name in names]
    source.burst(1)
    stuck.until(lambda: stuck.logged("began"), "its beginning")
    others[0].until(
        lambda: sum(len(each.logged("got")) for each in others) >= BURST - 2 * limit, "what is for the others"
    )
    stuck.kill()
    source.until(lambda: source.logged("unconfirmed"), "hearing of it")
    (told,) = source.logged("unconfirmed")
    name, count = told.split()
    assert name == "stuck"
    assert int(count) <= limit
    source.burst(2)
    handled = 2 * BURST - int(count)
    others[0].until(lambda: sum(len(each.logged("got")) for each in others) == handled, "all the rest")
    assert len({line for each in workers for line in each.logged("got")}) == handled
