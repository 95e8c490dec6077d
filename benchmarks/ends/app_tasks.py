"""Tasks of an app: the server end runs a hub or Redis, and the command of the worker; the client end is the library's own.

Both the worker and the client import a module with the tasks of one library, which asks `broker_url` for its broker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.control import Control, Fields, arguments
from benchmarks.ends.hub_process import be_hub, free_port, start
from benchmarks.ends.hub_rounds import stand_by
from benchmarks.rabbitmq import RabbitMQ
from benchmarks.redis import running

#: Coroutines that submit, or wait for results.
OPEN = 64
#: Names the broker to a worker.
BROKER = "REDPOLL_BENCHMARK_BROKER"
STOP_TIMEOUT = 20.0


def broker_url() -> str:
    """Return the URL of the broker, in a worker or in a client end."""
    return os.environ.get(BROKER) or str(arguments()[1]["address"])


async def each(work: Callable[[Any], Awaitable[Any]], items: Iterable[Any]) -> list[Any]:
    """Return what a coroutine function makes of each item, so many at a time, in any order."""
    left, done = iter(items), []

    async def some() -> None:
        for item in left:
            done.append(await work(item))  # noqa: PERF401  # as they come

    await asyncio.gather(*(some() for _ in range(OPEN)))
    return done


@contextmanager
def broker(options: Fields) -> Iterator[str]:
    """Run the broker that a contender uses, and yield its URL."""
    if "broker" in options:
        yield options["broker"]
        return
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        if options["runs"] == "redis":
            settings = {name: options[name] for name in ("appendonly", "appendfsync") if name in options}
            with running(folder, **settings) as port:
                yield f"redis://127.0.0.1:{port}/0"
            return
        if options["runs"] == "rabbitmq":
            with RabbitMQ(Path(folder)) as rabbitmq:
                yield rabbitmq.url
            return
        port = free_port()
        hub = start(be_hub, folder, port)
        try:
            while not _listens(port):
                time.sleep(0.02)
            yield f"redpoll://127.0.0.1:{port}"
        finally:
            hub.kill()
            hub.join()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def working(command: list[str], url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of a worker, a module of Python and its arguments; without its log."""
    worker = subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, BROKER: url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def main() -> None:
    """Run the server end."""
    _, options = arguments()
    control = Control()
    with broker(options) as url, working(options["worker"], url):
        control.write(address=url)
        stand_by(control)


if __name__ == "__main__":
    main()
