"""Raw TCP between two processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from redpoll.cli.bench import baseline
from redpoll.cli.bench.programs import raw_latency, raw_throughput
from redpoll.cli.child import Program
from tests.cli.support import environment


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, 100_000])
async def test_messages_go_there_and_back(size: int) -> None:
    """Two processes measure so many round trips of a message of any size."""
    found = await raw_latency(size, 20)
    assert (found.size, found.count) == (size, 20)
    assert 0 < found.p50 <= found.p90 <= found.p99 <= found.max


@pytest.mark.asyncio
@pytest.mark.parametrize(("size", "count"), [(1, 3), (7, 20_000), (100_000, 5)])
async def test_messages_go_one_way(size: int, count: int) -> None:
    """Two processes measure so many messages, whether a write holds many of them or part of one."""
    found = await raw_throughput(size, count)
    assert (found.size, found.count) == (size, count)
    assert found.rate > 0


@pytest.mark.asyncio
async def test_the_end_of_the_other_ends_it() -> None:
    """An end whose other end goes away in the middle fails instead of waiting."""
    async with Program("echo", "redpoll.cli.bench.baseline", "echo", "10", "5") as there:
        host, _, port = (await there.event("listening"))["address"].rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"half")
        assert await there._running().wait() == 1


def test_both_ends_run_in_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    """The arguments are role, size, count and, for the end that dials, the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        baseline.main(["ask", "3", "10", address])
        thread.join()
    assert '"event": "latency", "size": 3, "count": 10' in capfd.readouterr().out


def test_it_is_light() -> None:
    """What raw TCP imports has neither the command's libraries nor charts in it."""
    code = "import sys, redpoll.cli.bench.baseline; sys.exit(bool({'typer', 'rich', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
