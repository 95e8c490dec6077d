"""Processes of the command that begin where its imports have ended, which take four fifths of the time of a short one.

A server of each process of tests imports the command, and forks once for each of its runs. What is forked is a child of
the tests' process like any other: it is waited for, and gets signals, as if it had been started there. Where Linux'
`prctl` is missing, or no server was started, the command is started as users start it.

`python -m tests.cli.prepared DESCRIPTOR` is the server. `python tests/cli/prepared.py PATH` is one for shells: what asks it
is tests/cli/forked.py, which waits for the process in its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["COMMAND", "Command", "serving"]

COMMAND = [sys.executable, "-m", "redpoll"]

#: Of linux/prctl.h: who is nearest among the ancestors becomes the parent of who is left behind.
_SET_CHILD_SUBREAPER = 36

#: Maximum size of a request, in bytes: arguments and environment.
_LARGEST = 1 << 20

_server: socket.socket | None = None


class Command(subprocess.Popen[bytes]):
    """The command in a process of its own; its arguments are those of `Popen` that tests need.

    Args:
        arguments: What follows the command's name.
        options: `stdin`, `stdout`, `stderr` and `env`.
    """

    def __init__(self, *arguments: str, env: dict[str, str], **options: Any) -> None:
        self._forked = _server is not None
        super().__init__([*COMMAND, *arguments], env=env, **options)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        if not self._forked or _server is None:
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        env, pipes = given[5], given[9:15]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        streams = [own if passed == -1 else passed for own, passed in enumerate((p2cread, c2pwrite, errwrite))]
        request = {"arguments": args[len(COMMAND) :], "environment": env, "folder": str(Path.cwd())}
        with _adopting():
            socket.send_fds(_server, [json.dumps(request).encode()], streams)
            self.pid = int(_server.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of what the server leaves behind, for as long as a block."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.contextmanager
def serving(environment: dict[str, str]) -> Iterator[None]:
    """Have a server, for as long as a block."""
    global _server  # noqa: PLW0603 - one for a process of tests
    if sys.platform != "linux":
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
    nothing = subprocess.DEVNULL
    arguments = [sys.executable, "-m", "tests.cli.prepared", str(theirs.fileno())]
    with subprocess.Popen(
        arguments, stdin=nothing, stdout=nothing, env=environment, pass_fds=[theirs.fileno()]
    ) as process:
        theirs.close()
        with ours:
            _server = ours
            try:
                yield
            finally:
                _server = None
        process.wait()


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it in the process that is to carry it out. The end of the requests ends this one."""
    while True:
        text, streams, _, _ = socket.recv_fds(requests, _LARGEST, 3)
        if not text:
            sys.exit()
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            _leave_a_child(writing)
            os.close(reading)
            os.close(writing)
            requests.close()
            _take_streams(streams)
            request: dict[str, Any] = json.loads(text)
            return request
        os.waitpid(between, 0)
        requests.send(os.read(reading, 32))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def _serve_shells(path: str) -> dict[str, Any]:
    """Fork for each connection to a socket; return the request in the process that is to carry it out."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
    if (child := os.fork()) != 0:
        for stream in streams:
            os.close(stream)
        connection.send(str(child).encode())
        connection.send(str(os.waitpid(child, 0)[1]).encode())
        os._exit(0)
    connection.close()
    _take_streams(streams)
    folder, count, *rest = map(os.fsdecode, text.split(b"\0"))
    variables = dict(each.split("=", 1) for each in rest[int(count) :])
    return {"folder": folder, "arguments": rest[: int(count)], "environment": variables}


def _take_streams(streams: list[int]) -> None:
    """Have these as standard input, output and error."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)


def _leave_a_child(writing: int) -> None:
    """Go on in a child, and end this process; the child's number goes into the pipe."""
    if (child := os.fork()) != 0:
        os.write(writing, str(child).encode())
        os._exit(0)


def _begin(request: dict[str, Any]) -> NoReturn:
    """Run the command as a new interpreter would."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["redpoll", *request["arguments"]]
    # As a new interpreter makes them: those of the server have read and written nothing, but of other files.
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    main()


if __name__ == "__main__":
    from redpoll.cli import main

    # What the commands import when they begin, and typer when it reads their arguments.
    for needed in ("redpoll.cli.app", "redpoll.cli.output", "pydantic.type_adapter", "uvloop"):
        importlib.import_module(needed)
    gc.collect()
    gc.freeze()
    where = sys.argv[1]
    _begin(_serve(socket.socket(fileno=int(where))) if where.isdecimal() else _serve_shells(where))
