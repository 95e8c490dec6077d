"""Programs of redpoll in processes of their own, which tell what they do as JSON objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redpoll
from redpoll.errors import RedpollError
from redpoll.platforms import FORKS, KILL

__all__ = ["Child", "ChildError", "Program"]

#: Seconds for starting an interpreter and listening, and for draining.
_PATIENCE = 30.0

#: The folder of the package that this process runs.
_SOURCE = str(Path(redpoll.__file__).parent.parent)


class ChildError(RedpollError):
    """The second process did not do what it was started for.

    Attributes:
        command: What it was to run.
        problem: What it did instead.
    """

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(command, problem)
        self.command = command
        self.problem = problem

    def _text(self) -> str:
        return f"redpoll {self.command} in a second process {self.problem}"


class Program:
    """A module in a second process, with `async with`: it is started on entering and has ended on leaving.

    Its standard input ends when this process does, however that comes, so that it can end too.

    Args:
        command: What it is called in errors.
        module: What `python -m` runs.
        arguments: Its command line.
    """

    def __init__(self, command: str, module: str, *arguments: str) -> None:
        self._command = command
        self._arguments = (module, *arguments)
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        """Start it."""
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it: drained unless that takes too long."""
        await self._end(signal.SIGTERM)

    async def event(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the next event, which has to be the one of this name.

        Args:
            name: What the event is called.
            timeout: Seconds that it may take; None (the default) is without end.

        Raises:
            ChildError: The program told something else, for instance that it failed, or ended, or took too long.
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

    async def _start(self) -> None:
        path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
        self._process = await asyncio.create_subprocess_exec(
            # -P: what lies in the current directory is not the package that this process runs.
            *(sys.executable, "-P", "-m", *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # Ctrl-C at the terminal is for the first process, which ends this one in its turn.
            start_new_session=True,
        )

    async def _end(self, number: signal.Signals) -> None:
        process = self._running()
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            _signal(process, number)
            try:
                async with asyncio.timeout(_PATIENCE):
                    await process.wait()
            except TimeoutError:
                _signal(process, KILL)
                await process.wait()

    def _running(self) -> Process:
        if self._process is None:
            raise ChildError(self._command, "was not started")
        return self._process


class Child(Program):
    """A command that listens, in a second process, with `async with`.

    It listens on entering and has ended on leaving; if this process dies, it ends too, because its standard input does.

    Args:
        arguments: The command and its options; `--json` and `--until-eof` are added.

    Attributes:
        address: Where it listens, once entered.
        slots: How many messages it works on at a time.

    Raises:
        ChildError: It did not come up.
    """

    def __init__(self, *arguments: str) -> None:
        super().__init__(arguments[0], "redpoll", *arguments, "--json", "--until-eof")
        self.address = ""
        self.slots = 0

    async def __aenter__(self) -> Self:
        """Start it and wait until it listens."""
        await self._start()
        try:
            event = await self.event("listening", timeout=_PATIENCE)
        except BaseException:
            await self._end(KILL)
            raise
        self.address = str(event["address"])
        self.slots = int(event["slots"])
        return self

    async def finish(self) -> dict[str, Any]:
        """Ask it to drain and wait until it has ended.

        Returns:
            Its last event, with what it counted.

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


def _signal(process: Process, number: signal.Signals) -> None:
    # It may have ended without having been waited for yet.
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
