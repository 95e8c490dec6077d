"""Running a command's coroutine: signals that drain, errors that become exit codes."""

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

#: Seconds in which an ending command settles what is open.
DRAIN = 5.0


class Stop:
    """The wish to end: the first Ctrl-C or SIGTERM sets it, a second one ends the process at once.

    Where a command waits for the second one too, the third does that. Belongs to the running event loop.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._again: asyncio.Event | None = None
        self._code = ExitCode.INTERRUPTED

    @property
    def code(self) -> ExitCode:
        """What a command exits with that was stopped before it was done."""
        return self._code

    def is_set(self) -> bool:
        """Tell whether somebody wants the command to end."""
        return self._event.is_set()

    @property
    def is_urgent(self) -> bool:
        """Whether the command was asked twice, and waits for that."""
        return self._again is not None and self._again.is_set()

    def insist(self) -> bool:
        """Ask the command to end a second time; False if it does not wait for that, or was asked so before."""
        if self._again is None or self._again.is_set():
            return False
        self._again.set()
        return True

    async def wait_again(self) -> None:
        """Wait until the command is asked a second time. Cancelling it has no effect on others that wait."""
        if self._again is None:
            self._again = asyncio.Event()
        await self._again.wait()

    def set(self, number: int = signal.SIGINT) -> None:
        """Ask the command to end.

        Args:
            number: The signal that asks.
        """
        if number == signal.SIGTERM:
            self._code = ExitCode.TERMINATED
        self._event.set()

    async def wait(self) -> None:
        """Wait until the command has to end. Cancelling it has no effect on others that wait."""
        await self._event.wait()

    async def unless(self, work: Awaitable[ResultT]) -> ResultT | None:
        """Await `work`, but no longer than until the command has to end.

        Returns:
            What `work` returns, or None after a stop; `work` is then cancelled and has ended.
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
    """Run a command on an event loop of its own and exit with what it returns.

    Args:
        command: Gets the `Stop` that signals set.
        output: Where an error that ends the command is told.

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
        # Ctrl-C may come before it has begun.
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
