"""`redpoll demo`, as its users run it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest

from redpoll.bus import connect
from redpoll.cli import demo_hub
from redpoll.cli.child import Program
from tests.cli.support import refuse, run, started, until


def test_it_shows_a_table() -> None:
    """It exits with 0 and shows every step with its figures, in 80 columns, without a terminal."""
    done = run("demo", "--messages", "200")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    for word in ("lines in order", "send, 1 open", "request, 64 open", "p99", "slots", "errors"):
        assert word in text
    assert "each arrived once and in order" in text
    assert "One of two workers was killed" in text
    assert max(map(len, text.splitlines())) <= 80
    assert done.stderr == b""


def test_it_is_told_as_json(tmp_path: Path) -> None:
    """With --json there is one object: what was sent and what each step took."""
    (tmp_path / "some.log").write_bytes(b"one\n\nthree\r\n\xff")
    done = run("demo", "--messages", "100", "--file", str(tmp_path / "some.log"), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["exact"] is True
    assert result["repeats"] == 25
    assert result["lines"] == {"sent": 100, "received": 100, "first_difference": None}
    steps = {step["work"]: step for step in result["steps"]}
    assert [step["messages"] for step in steps.values()] == [100, 10, 100, 10, 100, 60]
    assert not any(step["errors"] for step in steps.values())
    assert steps["request, 1 open"]["latency"]["p50"] > 0
    assert steps["lines in order"]["slots"] == 256
    tasks = result["tasks"]
    assert (tasks["submitted"], tasks["results"], tasks["outcomes"], tasks["exact"]) == (60, 60, 60, True)
    assert tasks["begun_again"] <= 4


@pytest.mark.parametrize("name", ["no/such/file", "empty"])
def test_a_file_without_lines_is_usage(capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """A file that is missing or empty exits with 2."""
    (tmp_path / "empty").touch()
    code, out, err = refuse(capfd, "demo", "--file", str(tmp_path / name))
    assert (code, out) == (2, "")
    assert "cannot" in err


def children(parent: int) -> dict[str, int]:
    """The processes that a process has started, by the command that they run."""
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if int(status.rpartition(")")[2].split()[1]) == parent and b"redpoll" in arguments:
            found[arguments[arguments.index(b"redpoll") + 1].decode()] = int(folder.name)
    return found


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_its_processes_end_with_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """However it ends, the processes that it started end too."""
    with started(tmp_path, "demo", "--messages", "1000000") as demo:
        until(lambda: len(children(demo.process.pid)) == 2, "both processes")
        processes = children(demo.process.pid).values()
        assert demo.end(number) == code
        until(lambda: not any(map(is_alive, processes)), "their end")
        assert demo.rest() == b""


def test_a_listener_that_dies_makes_it_fail(tmp_path: Path) -> None:
    """When the second process is killed under way it exits with 1 and says so."""
    with started(tmp_path, "demo", "--messages", "1000000") as demo:
        until(lambda: len(children(demo.process.pid)) == 2, "both processes")
        os.kill(children(demo.process.pid)["listen"], signal.SIGKILL)
        assert demo.wait() == 1
        assert "redpoll listen in a second process ended with exit code -9" in demo.errors


@pytest.mark.asyncio
async def test_a_hub_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step waits longer for its hub, on a loaded machine, than `connect` does by itself, here for 0.2 s."""
    listening = Program.listening
    hubs: list[Process] = []

    async def listen(*given: Any) -> Any:
        hub, event = await listening(*given)
        hubs.append(hub._running())
        return hub, event

    def freeze(*given: Any, **options: Any) -> Any:
        hubs[0].send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.6, hubs[0].send_signal, signal.SIGCONT)
        return connect(*given, **{"connect_timeout": 0.2, **options})

    monkeypatch.setattr(Program, "listening", listen)
    monkeypatch.setattr(demo_hub, "connect", freeze)
    _, account = await demo_hub.lose_a_worker(str(tmp_path), 6)
    assert account.exact
