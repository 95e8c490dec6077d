"""The fixture `redpoll_app`: an app on the memory engine, in virtual time, with a list of what was submitted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, TypeVar

from redpoll.bus import Bus
from redpoll.bus.app import App, AppTask, Work, Working
from redpoll.testing.buses import BusFactory
from redpoll.testing.virtual import VirtualTime

__all__ = ["AppFactory", "RunningApp", "Submitted"]

R = TypeVar("R")

#: Seconds of virtual time by which `drain` goes on where nothing but delayed tasks is left.
_STEP: Final = 1.0
#: Seconds between two looks at a handler that runs.
_LOOK: Final = 0.001


class Submitted(NamedTuple):
    """A task that was submitted in a test.

    Attributes:
        name: Queue and name of the function.
        arguments: The arguments as they were sent, by name.
        options: The options of `Engine.publish`.
    """

    name: str
    arguments: dict[str, Any]
    options: Mapping[str, Any]


class RunningApp:
    """An app that runs in a test. Made by the fixture `redpoll_app`.

    Args:
        app: The app.
        working: Its handling half.
        factory: The factory of its bus.

    Attributes:
        app: The app.
        time: The time of its engine: ``await running.time.advance(60)``.
    """

    def __init__(self, app: App, working: Working, factory: BusFactory) -> None:
        self.app = app
        self.time: VirtualTime = factory.time
        self._working = working
        self._factory = factory

    @property
    def bus(self) -> Bus:
        """Its bus."""
        return self.app.bus

    @property
    def submitted(self) -> list[Submitted]:
        """The tasks that were submitted to functions of the app, in order; those of schedules are not."""
        names = {(each.queue, each.name): title for title, each in self.app.tasks.items()}
        found = []
        for to, body, _, options in self._factory.sent:
            match body:
                case [str() as name, dict() as arguments, *_] if (to, name) in names:
                    found.append(Submitted(names[to, name], arguments, options))
        return found

    async def drain(self, timeout: float = 30.0, within: float = 86_400.0) -> None:
        """Wait until no task of the app's queues is left: neither ready, nor taken, nor delayed; dead letters stay.

        Where all that is left is delayed, time is advanced. It ends with a schedule's task as with any other, and does not
        wait for the next one.

        Args:
            timeout: Seconds of real time that it may take.
            within: Seconds of virtual time by which it may advance.

        Raises:
            TimeoutError: Tasks are left.
        """
        loop, end, until = (
            asyncio.get_running_loop(),
            asyncio.get_running_loop().time() + timeout,
            self.time.time() + within,
        )
        queues = {each.queue for each in self.app.tasks.values() if not each.declared}
        while True:
            await self.time.advance(0)
            names = queues & set(await self.bus.queues.names())
            found = [await self.bus.queues.inspect(name) for name in names]
            left = {each.spec.name: each.ready + each.taken + each.delayed for each in found}
            if not any(left.values()):
                return
            if loop.time() >= end or self.time.time() >= until:
                raise TimeoutError(f"tasks are left: {left}")
            if any(each.ready or each.taken for each in found):
                await asyncio.sleep(_LOOK)
            else:
                await self.time.advance(_STEP)

    async def run(self, task: AppTask[..., R, Any], /, *args: Any, **kwargs: Any) -> R:
        """Run a task in this test, with no queue between: its arguments and its result are encoded, decoded and converted.

        Args:
            task: The function.
            *args: Its arguments.
            **kwargs: The same by name; ones with types that do not fit may be given, to see them refused.

        Raises:
            BadPayload: The arguments do not fit.
            Exception: The function raised it.
        """
        payloads, shape = self.bus.payloads, task.shape
        text = payloads.writer == "json"

        def carried(value: Any) -> Any:
            return payloads.unpack(payloads.pack(shape.to_wire(value, text=text)))

        work = Work("task", task.title, shape.arguments(carried(shape.bind(args, kwargs))))
        result: R = shape.result(carried(await self._working.handling(task)(work)))
        return result


class AppFactory:
    """Runs apps in a test: the fixture `redpoll_app`.

    Args:
        factory: The factory of their buses, which meet each other.
    """

    def __init__(self, factory: BusFactory) -> None:
        self._factory = factory

    def __call__(
        self, app: App, *, work: bool = True, concurrency: int | None = None, **options: Any
    ) -> AbstractAsyncContextManager[RunningApp]:
        """Run an app on the memory engine, in virtual time: ``async with redpoll_app(app) as running: ...``.

        Args:
            app: The app; its URL and its options for connecting are not used.
            work: False to handle nothing: what is submitted stays in the queues.
            concurrency: As for `App.work`.
            **options: As for `redpoll.connect`.
        """
        return self._running(app, work, concurrency, options)

    @contextlib.asynccontextmanager
    async def _running(
        self, app: App, work: bool, concurrency: int | None, options: dict[str, Any]
    ) -> AsyncIterator[RunningApp]:
        _ = self._factory.time
        async with self._factory(**options) as bus:
            await app.start(bus)
            try:
                working = app.work(concurrency=concurrency, drain=0.0)
                async with working if work else contextlib.nullcontext():
                    yield RunningApp(app, working, self._factory)
            finally:
                await app.close()
