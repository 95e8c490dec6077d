"""Plain functions of an app that compute, each in a child process: one that dies takes its own task along and no other."""

from __future__ import annotations

import asyncio
import importlib
import pickle  # between a process and the children that it started itself
from functools import partial
from traceback import format_exception
from typing import Any

from redpoll.bus.app.middleware import Work
from redpoll.bus.app.tasks import AppTask
from redpoll.bus.awaitables import called
from redpoll.bus.envelope import Envelope, Payloads
from redpoll.bus.tasks import Died, Requeue, Task
from redpoll.bus.tasks.ending import Ending, Way
from redpoll.bus.tasks.processes import Errand, Processes
from redpoll.bus.tasks.worker import Voice
from redpoll.errors import ConfigError

__all__ = ["AppProcesses"]


class AppProcesses:
    """The child processes of an app.

    Args:
        payloads: The serializers of the bus.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._processes = Processes(_call, payloads, None)

    def check(self, function: AppTask[..., Any, Any]) -> None:
        """Refuse a function with an argument that a process is not given.

        Raises:
            ConfigError: It has one.
        """
        for name, kind in function.shape.given:
            if kind is not Task:
                raise ConfigError("pool", function.title, f"{name!r} cannot be given to a process, only the Task can")

    async def run(self, function: AppTask[..., Any, Any], work: Work, threads: Any) -> Any:
        """Call a function in a process; cancelled, that is killed.

        Args:
            function: The function.
            work: Its task, with the arguments.
            threads: The executor of the thread that waits.

        Raises:
            Died: The process died.
            Exception: The function raised it.
        """
        loop = asyncio.get_running_loop()
        hold: Any = None if work.task is None else work.task._hold
        named = function.function.__module__, function.function.__qualname__
        errand = Errand(hold, (*named, work.arguments, [name for name, _ in function.shape.given]))
        call = partial(self._processes.work, errand, Voice(hold, loop).progress, bool)
        try:
            ending: Ending = await loop.run_in_executor(threads, call)
        except asyncio.CancelledError:
            self._processes.stop(errand)
            raise
        if ending.way is Way.RESULT and ending.envelope is not None:
            done, value = pickle.loads(ending.envelope.body)  # noqa: S301
            if not done:
                raise value
            return value
        if ending.way is Way.DIED:
            raise Died(ending.reason)
        if ending.way is Way.REQUEUE:
            raise Requeue(reason="its process was stopped")
        raise RuntimeError(ending.reason)

    async def close(self) -> None:
        """End the idle processes."""
        await asyncio.get_running_loop().run_in_executor(None, self._processes.close)


def _call(task: Task, module: str, name: str, values: dict[str, Any], given: list[str]) -> Ending:
    """Call a function; in the child."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        function = found.function if isinstance(found, AppTask) else found
        outcome: tuple[bool, Any] = True, called(function, **values, **dict.fromkeys(given, task))
    except Exception as error:  # noqa: BLE001  # any exception of a function is its task's
        error.add_note("In its process: " + "".join(format_exception(error))[-8_192:])
        outcome = False, error
    try:
        # Loaded here too: some exceptions are pickled, and cannot be made again.
        packed = pickle.dumps(outcome)
        pickle.loads(packed)  # noqa: S301
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        said = f"{type(outcome[1]).__name__} cannot be sent from its process: {error}"
        packed = pickle.dumps((False, RuntimeError(said)))
    return Ending(Way.RESULT, Envelope("pickle", packed))
