"""Programs of redpoll in child processes, which report events as JSON objects."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redpoll
from redpoll.errors import RedpollError
from redpoll.platforms import FORKS, KILL

__all__ = ["ChildError", "Program"]

#: Seconds for starting an interpreter and listening, and for draining.
_PATIENCE = 30.0

#: Folder of the package that this process runs.
_SOURCE = str(Path(redpoll.__file__).parent.parent)


class ChildError(RedpollError):
    """The child process failed.

    Attributes:
        command: The command that it ran.
        problem: What happened.
    """

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(command, problem)
        self.command = command
        self.problem = problem

    def _text(self) -> str:
        return f"redpoll {self.command} in a second process {self.problem}"


class Program:
    """A module in a child process, with `async with`: it is started on entering and has ended on leaving.

    Its standard input ends when this process ends, for whatever reason, so that it can end too.

    Args:
        command: Its name in errors.
        module: The module that `python -m` runs.
        arguments: Its command line.
        prints: Let it print what it likes, where this process does; it reports no events then.
    """

    def __init__(self, command: str, module: str, *arguments: str, prints: bool = False) -> None:
        self._command = command
        self._prints = prints
        self._arguments = (module, *arguments)
        self._process: Process | None = None

    @classmethod
    async def listening(cls, stack: AsyncExitStack, *arguments: str) -> tuple[Self, dict[str, Any]]:
        """Start a command that listens, and wait until it does; leaving the stack ends it.

        Args:
            stack: Ends the program.
            *arguments: The command and its options; `--json` and `--until-eof` are added.

        Returns:
            The program, and its event "listening".

        Raises:
            ChildError: It did not start.
        """
        program = cls(arguments[0], "redpoll", *arguments, "--json", "--until-eof")
        await stack.enter_async_context(program)
        return program, await program.event("listening", timeout=_PATIENCE)

    async def __aenter__(self) -> Self:
        """Start it."""
        path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
        self._process = await asyncio.create_subprocess_exec(
            # -P: do not import a package from the current directory.
            *(sys.executable, "-P", "-m", *self._arguments),
            stdin=PIPE,
            stdout=None if self._prints else PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # Ctrl-C at the terminal is for the parent process, which then ends this one.
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain and end it, or kill it if that takes too long."""
        process = self._running()
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(_PATIENCE):
                    await process.wait()
            except TimeoutError:
                _signal(process, KILL)
                await process.wait()

    async def event(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the next event, which must have this name.

        Args:
            name: Name of the event.
            timeout: Seconds to wait; None (the default) is no limit.

        Raises:
            ChildError: The program reported another event, for example a failure, or ended, or took too long.
        """
        process = self._running()
        if process.stdout is None:
            raise ChildError(self._command, "has no standard output")
        try:
            async with asyncio.timeout(timeout):
                line = await process.stdout.readline()
                if not line:
                    raise ChildError(self._command, f"ended with exit code {await process.wait()}")
        except TimeoutError:
            raise ChildError(self._command, f'did not say "{name}" within {timeout:g} s') from None
        event: dict[str, Any] = json.loads(line)
        if event.get("event") != name:
            raise ChildError(self._command, str(event.get("error") or event))
        return event

    async def kill(self) -> None:
        """Kill it, as a crash or the system would."""
        process = self._running()
        _signal(process, KILL)
        await process.wait()

    async def wait(self) -> int:
        """Wait for its end; return its exit code, below 0 for a signal."""
        return await self._running().wait()

    def tell(self, text: str) -> None:
        """Write to its standard input, if it has not ended."""
        stdin = self._running().stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(text.encode())

    async def finish(self) -> dict[str, Any]:
        """Ask it to drain and wait until it has ended.

        Returns:
            Its last event, with its counts.

        Raises:
            ChildError: It ended with an error.
        """
        process = self._running()
        if FORKS or process.stdin is None:
            _signal(process, signal.SIGTERM)
        else:
            process.stdin.close()
        event = await self.event("done", timeout=_PATIENCE)
        if await process.wait() != 0:
            raise ChildError(self._command, f"ended with exit code {process.returncode}")
        return event

    def _running(self) -> Process:
        if self._process is None:
            raise ChildError(self._command, "was not started")
        return self._process


def _signal(process: Process, number: signal.Signals) -> None:
    # It may have ended before it was waited for.
    with suppress(ProcessLookupError):
        process.send_signal(number)
