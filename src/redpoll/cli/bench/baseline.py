"""The minimum cost of a message between two processes: blocking TCP sockets without frames.

`python -m redpoll.cli.bench.baseline` is either end; `redpoll bench` starts it for its column of raw TCP.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from time import perf_counter, perf_counter_ns

from .figures import Latency, Throughput, warm_up

__all__ = ["main"]

#: Bytes per write and read when messages are batched.
_BATCH = 1 << 16

#: Seconds to wait for the other end.
_PATIENCE = 30.0


def main(arguments: list[str] | None = None) -> None:
    """Run one end.

    Args:
        arguments: What follows the program's name: "echo" or "take", the ends that listen, or "ask" or "give", then size,
            count, and for the latter two the address of the other; None (the default) takes `sys.argv`.
    """
    role, size, count, *address = sys.argv[1:] if arguments is None else arguments
    work, listens = _WORKS[role]
    with _accepted() if listens else _dialled(*address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        work(connection, int(size), int(count))


def _accepted() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_PATIENCE)
        _tell("listening", address="{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
    connection.settimeout(None)  # a timeout would cost a system call per message
    return connection


def _dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), _PATIENCE)
    connection.settimeout(None)
    return connection


def _echo(connection: socket.socket, size: int, count: int) -> None:
    view = memoryview(bytearray(size))
    for _ in range(warm_up(count) + count):
        _fill(connection, view)
        connection.sendall(view)


def _ask(connection: socket.socket, size: int, count: int) -> None:
    data = bytes(size)
    view = memoryview(bytearray(size))
    taken = []
    before = perf_counter_ns()
    for _ in range(warm_up(count) + count):
        connection.sendall(data)
        _fill(connection, view)
        after = perf_counter_ns()
        taken.append(after - before)
        before = after
    _tell("latency", **Latency.of(size, taken[-count:]).record())


def _take(connection: socket.socket, size: int, count: int) -> None:
    left = size * count
    view = memoryview(bytearray(_BATCH))
    connection.recv(1, socket.MSG_PEEK)  # timing begins with the first message
    started = perf_counter()
    while left:
        left -= _received(connection, view[:left])
    _tell("throughput", **Throughput(size, count, perf_counter() - started).record())


def _give(connection: socket.socket, size: int, count: int) -> None:
    at_once = max(1, _BATCH // size)
    batch = bytes(at_once * size)
    whole, rest = divmod(count, at_once)
    for _ in range(whole):
        connection.sendall(batch)
    connection.sendall(batch[: rest * size])


_WORKS: dict[str, tuple[Callable[[socket.socket, int, int], None], bool]] = {
    "echo": (_echo, True),
    "ask": (_ask, False),
    "take": (_take, True),
    "give": (_give, False),
}


def _fill(connection: socket.socket, view: memoryview) -> None:
    got = _received(connection, view)
    while got < len(view):
        got += _received(connection, view[got:])


def _received(connection: socket.socket, view: memoryview) -> int:
    got = connection.recv_into(view)
    if not got:
        raise ConnectionError("the other end closed before it was done")
    return got


def _tell(name: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": name, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
