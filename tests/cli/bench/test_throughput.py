"""`redpoll bench thr`, as its users run it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.bench.support import Started, end_all
from tests.cli.support import run, serving, started, until
from tests.cli.test_demo import children, is_alive

HERE = "127.0.0.1"


@pytest.mark.parametrize("first", ["local", pytest.param("remote", marks=pytest.mark.nightly)])
def test_the_programs_may_be_started_in_any_order(tmp_path: Path, first: str) -> None:
    """Whichever is started first waits for the other; both end with 0, and the local one tells the rate of its messages."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        arguments = {
            "local": ["thr", "local", directory.address, HERE, "256", "2000"],
            "remote": ["thr", "remote", directory.address, "256", "2000"],
        }
        order = [first, *(role for role in arguments if role != first)]
        ends = dict(zip(order, end_all(*(Started(*arguments[role]) for role in order)), strict=True))
    code, events, told = ends["local"]
    assert code == 0, told
    ready, event = events
    assert ready["queue"].startswith(f"{HERE}:")
    assert (event["event"], event["size"], event["count"]) == ("throughput", 256, 2000)
    assert event["megabits"] == pytest.approx(event["rate"] * 256 * 8e-6, rel=1e-3)
    code, events, told = ends["remote"]
    assert code == 0, told
    assert events == [{"event": "done", "messages": 2000}]


def test_a_sender_of_fewer_is_found_out(tmp_path: Path) -> None:
    """A receiver that is told of more than come ends with 1 when nothing moves any more."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        local = Started("thr", "local", directory.address, HERE, "16", "20", "--wait", "1")
        remote = Started("thr", "remote", directory.address, "16", "10")
        (code, events, told), (remote_code, _, _) = end_all(local, remote)
    assert (code, remote_code) == (1, 0)
    assert events[-1]["kind"] == "GoneError"
    assert "nothing came from the other program" in told


def test_it_does_all_by_itself() -> None:
    """Alone it prints a table in 80 columns, with raw TCP and the seed's columns beside, and exits with 0."""
    done = run("bench", "thr", "--sizes", "16,7", "--count", "500")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    for word in ("messages/s", "Mbit/s", "raw/s", "C++", "Python", "1,340,277", "2,976,623", "7 B"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    assert done.stderr == b""


def test_it_is_told_as_json(tmp_path: Path) -> None:
    """With --json there is an object for each size, with raw TCP and what the seed has of it, and one for each chart."""
    done = run("bench", "thr", "--sizes", "256", "--count", "500", "--json", "--plot", str(tmp_path))
    assert done.returncode == 0, done.stderr
    event, *charts = map(json.loads, done.stdout.splitlines())
    assert (event["event"], event["size"], event["count"]) == ("throughput", 256, 500)
    assert event["rate"] > 0
    assert event["raw"]["megabits"] > 0
    assert event["seed"] == {"cpp": 447_126, "python": 443_510}
    assert [Path(each["file"]).name for each in charts] == ["throughput.png", "throughput.svg"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_its_processes_end_with_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """However it ends, the programs that it started end too."""
    with started(tmp_path, "bench", "thr", "--sizes", "1", "--count", "1000000000", "--json") as whole:
        until(lambda: "bench" in children(whole.process.pid), "a program")
        processes = children(whole.process.pid).values()
        assert whole.end(number) == code
        until(lambda: not any(map(is_alive, processes)), "their end")
