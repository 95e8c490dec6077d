"""The handling half of an app: workers, servers and subscriptions for its functions."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Final, NamedTuple, Self

from redpoll.bus.app.calls import AppCall, AppStream
from redpoll.bus.app.functions import AppState, Function
from redpoll.bus.app.middleware import Proceed, Work, chain
from redpoll.bus.app.processes import AppProcesses
from redpoll.bus.app.tasks import AppTask
from redpoll.bus.awaitables import called, close_all
from redpoll.bus.broadcast import Broadcast, BroadcastSubscription
from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Payloads
from redpoll.bus.rpc.endpoints import expected_exceptions
from redpoll.bus.service import Service, submitted
from redpoll.bus.tasks import Plan, Task, Unfit, Worker
from redpoll.errors import BadPayload, ConfigError

__all__ = ["Listening", "Working"]

_log = logging.getLogger("redpoll.app")

#: Slots of a queue, where none are asked for: those of `Tasks.worker`.
_SLOTS: Final = 8


class Listening(NamedTuple):
    """A function that receives broadcasts.

    Attributes:
        function: The function.
        subject: The pattern of the subjects.
        durable: Name of the durable subscription, or None.
    """

    function: Function[..., Any, Any]
    subject: str
    durable: str | None


class Working:
    """Handles what the functions of an app are for, between entering and leaving. Made by `App.work`.

    Leaving it, handlers have `drain` seconds to finish; what is not done then goes back. A block that ends with an exception
    does not wait.
    """

    def __init__(
        self,
        state: AppState,
        tasks: Sequence[AppTask[..., Any, Any]],
        calls: Sequence[AppCall[..., Any, Any] | AppStream[..., Any, Any]],
        listeners: Sequence[Listening],
        values: Iterable[object],
        lifespan: AbstractAsyncContextManager[Any] | None,
        concurrency: int | None,
        drain: float | None,
    ) -> None:
        self._state = state
        self._tasks = tasks
        self._calls = calls
        self._listeners = listeners
        self._values = list(values)
        self._lifespan = lifespan
        self._concurrency = concurrency
        self._drain = drain
        self._stack = AsyncExitStack()
        self._open_parts: list[Worker | Service | BroadcastSubscription] = []
        self._threads: ThreadPoolExecutor | None = None
        self._in_threads: set[Future[Any]] = set()
        self._processes: AppProcesses | None = None
        self._mark = secrets.token_hex(6)
        self._text = False

    @property
    def in_threads(self) -> int:
        """Number of plain functions that run in threads, also of those whose task or call has ended meanwhile."""
        return len(self._in_threads)

    async def __aenter__(self) -> Self:
        """Enter the lifespan, set the schedules, and begin to receive.

        Raises:
            ConfigError: An annotation cannot be used, or nothing is there for an argument that is given.
            Unsupported: The engine keeps no schedules, and the app has some.
            Exception: The lifespan raised it, or the bus as it connected.
        """
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                given = await stack.enter_async_context(self._lifespan)
                self._values += given if isinstance(given, tuple) else [given]
            stack.push_async_exit(self._close)
            await self._open()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Receive no more, wait for handlers, leave the lifespan."""
        return await self._stack.__aexit__(kind, error, trace)

    async def _close(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close all at once: none receives while another drains, and the time is that of all."""
        drain = self._drain if kind is None else 0.0
        try:
            await close_all(each.close(drain) for each in self._open_parts)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)
            if self._processes is not None:
                await self._processes.close()

    async def _open(self) -> None:
        bus = self._state.connected()
        self._text = self._state.text
        if any(each.pool == "process" for each in self._tasks):
            self._processes = AppProcesses(bus.payloads)
        queues: dict[str, dict[str, tuple[AppTask[..., Any, Any], Proceed]]] = {}
        for task in self._tasks:
            queues.setdefault(task.queue, {})[task.name] = task, self.handling(task)
        slots = _SLOTS if self._concurrency is None else self._concurrency
        # Subscriptions and servers wait for threads as well: 64 calls at a time are rpc's own bound.
        self._threads = ThreadPoolExecutor(slots * max(1, len(queues)) + 64, "redpoll app")
        opened = self._open_parts.append
        servers: dict[str, dict[str, Any]] = {}
        for call in self._calls:
            servers.setdefault(call.target, {})[call.name] = self._endpoint(call)
        for target, methods in servers.items():
            opened(await bus.rpc.serve(target, SimpleNamespace(**methods)).__aenter__())
        for listener in self._listeners:
            callback = self._callback(listener.function)
            subscription = bus.broadcast.subscribe(callback, subject=listener.subject, durable=listener.durable)
            opened(await subscription.start())
        await self._plan([each for each in self._tasks if each.every is not None])
        for queue, named in queues.items():
            limits = [task.time_limit for task, _ in named.values() if task.time_limit is not None]
            worker = bus.tasks.planned_worker(
                partial(self._plan_of, named, queue, bus.payloads),
                queue,
                concurrency=slots,
                time_limit=max(limits, default=None),
            )
            opened(await worker.__aenter__())

    async def _plan(self, tasks: Sequence[AppTask[..., Any, Any]]) -> None:
        """Set the schedules of tasks; those that are there already, with the same times, continue."""
        if not tasks:
            return
        bus = self._state.connected()
        bus.capabilities.require("schedule", "schedules")
        there = {
            each.name: (each.queue, each.every, each.cron, each.zone, each.missed)
            for each in await bus.engine.schedules()
        }
        for task in tasks:
            times = task.every
            if times is not None and there.get(task.title) != (task.queue, *times):
                await bus.tasks.schedule(task.title, [task.name, {}], task.queue, **times._asdict())

    # -- tasks

    def _plan_of(
        self,
        named: Mapping[str, tuple[AppTask[..., Any, Any], Proceed]],
        queue: str,
        payloads: Payloads,
        delivery: Delivery,
    ) -> Plan:
        """Look at a task, and find its function and its arguments."""
        problem: object = "expected a list of the function's name and its arguments by name"
        try:
            match payloads.unpack(delivery.envelope):
                case [str() as name, values, *given]:
                    found = named.get(name)
                    if found is not None:
                        task, handling = found
                        if given:
                            # It came after others.
                            values = self._with_results(task, values, bool(given[0]), delivery, payloads)
                        work = partial(self._work, task, handling, task.shape.arguments(values))
                        can_stop = task.is_async or task.pool == "process"
                        return Plan(work, task.retry, task.time_limit, can_stop)
                    problem = f"{queue}:{name} is no task of this app"
        except Exception as error:  # noqa: BLE001  # the types of arguments may raise anything
            problem = error
        return Plan(partial(self._refuse, f"BadPayload: {problem}"))

    def _with_results(
        self, task: AppTask[..., Any, Any], values: Any, many: bool, delivery: Delivery, payloads: Payloads
    ) -> dict[str, Any]:
        """Return the arguments of a task with the results of those before it as the first; None stands for a failure."""
        results = Task(delivery, payloads).results
        found = [None if isinstance(each, Exception) else each for each in results]
        return {**values, task.shape.names[0]: found if many else found[0]}

    async def _refuse(self, reason: str, task: Task) -> None:
        _log.warning("task %s of %s cannot be read here: %s", task.id, task.queue, reason)
        raise Unfit(reason, self._mark)

    async def _work(
        self, function: AppTask[..., Any, Any], handling: Proceed, arguments: dict[str, Any], task: Task
    ) -> Any:
        result = await handling(Work("task", function.title, arguments, task=task))
        return function.shape.to_wire(result, text=self._text)

    # -- calls and broadcasts

    def _endpoint(self, call: AppCall[..., Any, Any] | AppStream[..., Any, Any]) -> Callable[..., Any]:
        handling = self.handling(call)
        if isinstance(call, AppStream):

            @expected_exceptions(BadPayload)
            async def streaming(**values: Any) -> AsyncGenerator[Any, None]:
                parts = await handling(Work("stream", call.title, call.shape.arguments(values)))
                async with aclosing(parts):
                    async for each in parts:
                        yield call.shape.to_wire(each, text=self._text)

            return streaming

        # Of the caller, and no failure of this server.
        @expected_exceptions(BadPayload)
        async def endpoint(**values: Any) -> Any:
            result = await handling(Work("call", call.title, call.shape.arguments(values)))
            return call.shape.to_wire(result, text=self._text)

        return endpoint

    def _callback(self, function: Function[..., Any, Any]) -> Callable[[Broadcast], Awaitable[None]]:
        names = function.shape.names
        if len(names) > 1:
            raise ConfigError("function", function.title, "takes the body of the broadcast, as one argument")
        handling = self.handling(function)

        async def callback(broadcast: Broadcast) -> None:
            values = function.shape.arguments({names[0]: broadcast.body}) if names else {}
            await handling(Work("broadcast", function.title, values, {"broadcast": broadcast}))

        return callback

    # -- functions

    def handling(self, function: Function[..., Any, Any]) -> Proceed:
        """Return what handles the work for a function, from the outermost middleware on."""
        processes = self._processes
        if isinstance(function, AppTask) and function.pool == "process" and processes is not None:
            processes.check(function)
            return chain(self._state.middleware, "handle", partial(self._apart, processes, function))
        given = {name: self._value_for(function, name, kind) for name, kind in function.shape.given}
        call = function.function

        async def last(work: Work) -> Any:
            values = work.arguments
            if given:
                values = {**values, **{name: find(work) for name, find in given.items()}}
            if isinstance(function, AppStream):
                return call(**values)
            if function.is_async:
                return await call(**values)
            # The thread has the context of the handler: its headers, and whether it is still wanted.
            run = partial(contextvars.copy_context().run, partial(called, call, **values))
            return await self._in_thread(run)

        return chain(self._state.middleware, "handle", last)

    def _in_thread(self, run: Callable[[], Any]) -> Awaitable[Any]:
        if self._threads is None:  # a test's, which works on nothing
            return asyncio.get_running_loop().run_in_executor(None, run)
        future = submitted(self._threads, run)
        self._in_threads.add(future)
        future.add_done_callback(self._in_threads.discard)
        return asyncio.wrap_future(future)

    async def _apart(self, processes: AppProcesses, function: AppTask[..., Any, Any], work: Work) -> Any:
        return await processes.run(function, work, self._threads)

    def _value_for(self, function: Function[..., Any, Any], name: str, kind: type) -> Callable[[Work], Any]:
        if kind is Task and isinstance(function, AppTask):
            return lambda work: work.task
        if kind is Broadcast and not isinstance(function, AppTask | AppCall | AppStream):
            return lambda work: work.options["broadcast"]
        for value in self._values:
            if isinstance(value, kind):
                return lambda _: value
        there = ", ".join(sorted({type(each).__name__ for each in self._values}))
        problem = f"{name!r} is to be given a {kind.__name__}, and there is none: only {there}"
        raise ConfigError("function", function.title, problem, "let the lifespan of the app yield one")
