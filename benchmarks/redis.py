"""A Redis of one's own on this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.control import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_TIMEOUT = 30.0
PAUSE = 0.02
INSTALL = "apt-get install redis-server"


@contextmanager
def running(folder: str, **settings: str) -> Iterator[int]:
    """Run a Redis on a free port of 127.0.0.1, which it yields; it is killed at the end of the block.

    Args:
        folder: Where its files go.
        **settings: Its configuration, besides that.

    Raises:
        FileNotFoundError: Redis is not installed.
        RuntimeError: It does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError(f"Redis is not installed: {INSTALL}")
    port = free_port()
    given = {"bind": "127.0.0.1", "port": str(port), "dir": folder, **settings}
    server = subprocess.Popen(
        [program, *(part for name, value in given.items() for part in (f"--{name}", value))], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + READY_TIMEOUT
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Redis does not listen")
            time.sleep(PAUSE)
        yield port
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(b"PING\r\n")
            return client.recv(5) == b"+PONG"
    except OSError:
        return False
