"""The driver's side of a benchmark's two processes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from benchmarks.control import Fields

ANSWER_TIMEOUT = 600.0
STOP_TIMEOUT = 10.0
ROOT = Path(__file__).resolve().parent.parent


class BenchmarkError(Exception):
    """A benchmark could not be run: what was missing, or which end died or fell silent."""


class End:
    """One process of a contender, driven by JSON lines.

    Args:
        name: Shown in errors.
        module: The module to run, below ``benchmarks.ends``.
        role: ``server`` or ``client``.
        options: Passed to the module as JSON.
        python: The interpreter to run it with.
        within: What stands before its command, so that it runs elsewhere.
    """

    def __init__(
        self,
        name: str,
        module: str,
        role: str,
        options: Mapping[str, object],
        python: str,
        within: Sequence[str] = (),
    ) -> None:
        self._name = f"{name} ({role})"
        self._pending = b""
        # A group of its own: an end that starts a broker must not leave it behind when it has to be killed.
        self._process = subprocess.Popen(
            [*within, python, "-m", f"benchmarks.ends.{module}", role, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop(kill=kind is not None)

    def write(self, fields: Mapping[str, object]) -> None:
        """Send one job."""
        stdin = self._process.stdin
        if stdin is None:
            raise BenchmarkError(f"{self._name} has no input")
        try:
            stdin.write(json.dumps(fields).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def read(self, timeout: float = ANSWER_TIMEOUT) -> Fields:
        """Return the next answer; raise `BenchmarkError` when none comes within `timeout` seconds or the end died."""
        stdout = self._process.stdout
        if stdout is None:
            raise BenchmarkError(f"{self._name} has no output")
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BenchmarkError(f"{self._name} gave no answer within {timeout:g} s")
                received = os.read(stdout.fileno(), 1 << 20)
                if not received:
                    raise self._gone()
                self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        answer: Fields = json.loads(line)
        return answer

    def _gone(self) -> BenchmarkError:
        code = self._process.wait(STOP_TIMEOUT)
        return BenchmarkError(f"{self._name} ended with exit code {code}; what it said is above")

    def _stop(self, *, kill: bool) -> None:
        process = self._process
        try:
            if not kill and process.stdin is not None:
                process.stdin.close()
                process.wait(STOP_TIMEOUT)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            print(f"{self._name} did not stop by itself", file=sys.stderr)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        pass


def _import_path() -> list[str]:
    """Return the paths on which the ends search modules: those of this process, without its interpreter's own packages."""
    given = os.environ.get("PYTHONPATH", "")
    return [str(Path(entry).resolve()) for entry in given.split(os.pathsep) if entry]
