"""The command in processes of its own, for its tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redpoll
from redpoll.cli import main
from tests.cli.prepared import COMMAND, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

__all__ = [
    "COMMAND",
    "PATIENCE",
    "Running",
    "environment",
    "errors",
    "refuse",
    "run",
    "serving",
    "started",
    "until",
]

#: Seconds after which a test gives up; nothing here takes a tenth of it.
PATIENCE = 50.0


def environment(**more: str) -> dict[str, str]:
    """The environment of the commands: 80 columns, no colours, a standard output with a buffer, this source tree."""
    others = {"FORCE_COLOR", "GITHUB_ACTIONS", "PYTHONUNBUFFERED"}
    kept = {name: value for name, value in os.environ.items() if name not in others}
    source = str(Path(redpoll.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", **more}


def run(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; with an environment of its own it starts as users start it."""
    if env is not None:
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env=environment(**env),
        )
    pipe = subprocess.PIPE
    with Command(*arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as process:
        try:
            out, err = process.communicate(stdin, PATIENCE)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def refuse(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command that cannot be carried out, in this process: its exit code, output and errors, each on one line."""
    import pytest  # not above: programs that tests start import this module for its environment

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capfd.readouterr()
    # typer puts its own errors into a frame.
    return int(ended.value.code or 0), told.out, " ".join(told.err.replace("│", " ").split())


def errors(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a finished command said on standard error, on one line."""
    return " ".join(done.stderr.decode().split())


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds; fail if it does not within the time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)


class Running:
    """A command that goes on, with its standard input and output at hand."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self.address = ""
        self._stderr = stderr

    @property
    def errors(self) -> str:
        """What it said on standard error so far."""
        return self._stderr.read_text()

    def write(self, data: bytes) -> None:
        """Give it input, at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_input(self) -> None:
        """End its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def line(self) -> bytes:
        """Read one line of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def event(self) -> dict[str, Any]:
        """Read one JSON object of its standard output."""
        event: dict[str, Any] = json.loads(self.line())
        return event

    def rest(self) -> bytes:
        """Read what is left of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(PATIENCE)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal, wait for its end and return the exit code."""
        self.process.send_signal(number)
        return self.wait()


@contextmanager
def started(folder: Path, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Running]:
    """Start the command; it is killed at the end if it is still there.

    Its standard error is kept in a file of `folder`, so that it never fills a pipe.
    """
    stderr = folder / f"stderr-{time.monotonic_ns()}"
    with stderr.open("wb") as file:
        process = Command(*arguments, stdin=subprocess.PIPE, stdout=stdout, stderr=file, env=environment())
    try:
        yield Running(process, stderr)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


@contextmanager
def serving(folder: Path, command: str, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Running]:
    """Start a command that listens, on a free port unless an address is given, and wait until it says where."""
    where = () if command == "directory" or (arguments and not arguments[0].startswith("-")) else ("0",)
    with started(folder, command, *where, *arguments, stdout=stdout) as running:
        if "--json" in arguments:
            running.address = running.event()["address"]
        else:
            until(lambda: "listening on" in running.errors or running.process.poll() is not None, "the address")
            found = re.search(r"listening on ([^\s,]+),?.*\n", running.errors)
            assert found, running.errors
            running.address = found[1]
        yield running
