"""Running a command's coroutine: signals that drain, errors as exit codes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import typer

from redpoll import run as run_loop
from redpoll.errors import RedpollError
from redpoll.platforms import die_by, signals

from .codes import ExitCode, code_of
from .output import Output

__all__ = ["DRAIN", "Stop", "run"]

ResultT = TypeVar("ResultT")

#: Seconds for an ending command to settle open work.
DRAIN = 5.0


class Stop:
    """A request to end: the first Ctrl-C or SIGTERM sets it, a second one ends the process at once.

    If a command also waits for the second one, the third ends it. It belongs to the running event loop.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._again: asyncio.Event | None = None
        self._code = ExitCode.INTERRUPTED

    @property
    def code(self) -> ExitCode:
        """The exit code of a command that was stopped before completion."""
        return self._code

    def is_set(self) -> bool:
        """Return True if the command was asked to end."""
        return self._event.is_set()

    @property
    def is_urgent(self) -> bool:
        """True if the command was asked twice, and waits for the second request."""
        return self._again is not None and self._again.is_set()

    def insist(self) -> bool:
        """Ask the command a second time to end; return False if it does not wait for that, or was already asked."""
        if self._again is None or self._again.is_set():
            return False
        self._again.set()
        return True

    async def wait_again(self) -> None:
        """Wait until the command is asked a second time. Cancelling does not affect other waiters."""
        if self._again is None:
            self._again = asyncio.Event()
        await self._again.wait()

    def set(self, number: int = signal.SIGINT) -> None:
        """Ask the command to end.

        Args:
            number: The signal.
        """
        if number == signal.SIGTERM:
            self._code = ExitCode.TERMINATED
        self._event.set()

    async def wait(self) -> None:
        """Wait until the command is asked to end. Cancelling does not affect other waiters."""
        await self._event.wait()

    async def until(self, work: Awaitable[ExitCode]) -> ExitCode:
        """Return the exit code of `work`, or, after a stop, the command's."""
        code = await self.unless(work)
        return self.code if code is None else code

    async def unless(self, work: Awaitable[ResultT]) -> ResultT | None:
        """Await `work` until the command is asked to end.

        Returns:
            The result of `work`, or None after a stop; `work` is then cancelled and has ended.
        """
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            for future in (task, waiter):
                future.cancel()
            await asyncio.gather(task, waiter, return_exceptions=True)


def run(command: Callable[[Stop], Coroutine[Any, Any, ExitCode]], output: Output) -> NoReturn:
    """Run a command on a new event loop and exit with its exit code.

    Args:
        command: Called with the `Stop` that signals set.
        output: Reports an error that ends the command.

    Raises:
        typer.Exit: Always, with the exit code.
    """
    work = _with_signals(command)
    try:
        code = run_loop(work)
    except RedpollError as error:
        output.error(error)
        code = code_of(error)
    finally:
        # Ctrl-C may arrive before it has begun.
        work.close()
    raise typer.Exit(code)


async def _with_signals(command: Callable[[Stop], Coroutine[Any, Any, ExitCode]]) -> ExitCode:
    loop = asyncio.get_running_loop()
    stop = Stop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set() and not stop.insist():
            die_by(number)
        stop.set(number)

    with signals(loop, (signal.SIGINT, signal.SIGTERM), on_signal):
        return await command(stop)
