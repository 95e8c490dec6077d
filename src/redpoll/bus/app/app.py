"""`App`: a module's decorated functions, which work in one program and are submitted or called in another."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from redpoll.bus.app.calls import AppCall, AppStream
from redpoll.bus.app.functions import AppState, Function
from redpoll.bus.app.middleware import Middleware
from redpoll.bus.app.shapes import Extra
from redpoll.bus.app.tasks import AppChain, AppGroup, AppTask, Pool
from redpoll.bus.app.working import Listening, Working
from redpoll.bus.broker.cron import next_time
from redpoll.bus.broker.schedules import check_times
from redpoll.bus.bus import Bus, connect
from redpoll.bus.records import Times, check_subject
from redpoll.bus.tasks import Retry
from redpoll.bus.tasks.retry import check_result, check_retry
from redpoll.bus.tasks.tasks import QUEUE
from redpoll.checks import check_function, is_async, one_of, optional, require, seconds, text
from redpoll.errors import ConfigError, UsageError

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]

_URL: Final = "redpoll://127.0.0.1"
#: Seconds that handlers have to finish.
_DRAIN: Final = 25.0
_extra: Final = one_of("ignore", "refuse")
_pool: Final = optional(one_of("thread", "process"))


class _TaskDecorator(Protocol):
    """A decorator that makes tasks."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AppTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> AppTask[P, R, R]: ...


class _CallDecorator(Protocol):
    """A decorator that makes calls."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a plain function may return one too, and is none
        self, function: Callable[P, AsyncIterator[R]], /
    ) -> AppStream[P, R, AsyncIterator[R]]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AppCall[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> AppCall[P, R, R]: ...


class App:
    """Decorated functions on a bus: tasks, calls, broadcasts and schedules.

    ::

        app = redpoll.App("redpoll://127.0.0.1")


        @app.task(queue="images")
        async def resize(path: str, width: int = 800) -> str: ...

    ``redpoll run module:app`` works on them. A program that submits enters the app: ``async with app: await
    resize.submit("a.png")``. Entering it connects; `work` handles in this process. Coroutine functions run on the loop, plain
    functions in threads.

    Arguments and results are checked and converted by their annotations: see `redpoll.bus.app.shapes`. A call that does not
    fit is refused to its caller, as `BadPayload`. A task that does not fit, or of a function that is not there, is offered to
    each other worker of its queue, and then becomes a dead letter with that reason; a broadcast is counted as failed.

    Args:
        url: The bus. None: the environment's REDPOLL_URL, or else a hub on this machine.
        middleware: Middleware around submitting and handling, the outermost first.
        lifespan: Called with the app by each process that works; a context manager that is entered before the first and left
            after the last message. What it yields (or each of a tuple) is given to handlers with an argument of its class
            whose default is `GIVEN`.
        extra: The fate of arguments that a function does not have, and of unknown fields of dataclasses and typed dicts in
            them: "ignore" them (default), or "refuse" the message.
        **options: As for `redpoll.connect`.

    Attributes:
        tasks: The functions whose calls are tasks, by "queue:name"; declared ones too.
        calls: The functions that are called, by "target.name".
        streams: Those that stream their values, likewise.
        listeners: The functions that receive broadcasts.
        middleware: The middleware around them.

    Raises:
        ConfigError: An option has a value that it cannot have.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: Iterable[Middleware] = (),
        lifespan: Lifespan | None = None,
        extra: Extra = "ignore",
        **options: Any,
    ) -> None:
        require("extra", extra, _extra)
        require("url", url, optional(text))
        self.url = os.environ.get("REDPOLL_URL", _URL) if url is None else url
        self.tasks: dict[str, AppTask[..., Any, Any]] = {}
        self.calls: dict[str, AppCall[..., Any, Any]] = {}
        self.streams: dict[str, AppStream[..., Any, Any]] = {}
        self.listeners: list[Listening] = []
        self._lifespan = lifespan
        self._options = options
        self._state = AppState(middleware, extra, self.url, options)
        self.middleware = self._state.middleware
        self._owned = False

    def __repr__(self) -> str:
        return f"<App of {len(self.tasks)} tasks, {len(self.calls)} calls, {len(self.listeners)} listeners>"

    # -- decorators

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AppTask[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> AppTask[P, R, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        queue: str = ...,
        name: str | None = ...,
        retry: Retry | None = ...,
        time_limit: float | None = ...,
        dedup: Callable[..., str] | None = ...,
        pool: Pool | None = ...,
    ) -> _TaskDecorator: ...

    def task(
        self,
        function: Any = None,
        /,
        *,
        queue: str = QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        time_limit: float | None = None,
        dedup: Callable[..., str] | None = None,
        pool: Pool | None = None,
    ) -> Any:
        """Make a function one whose calls are tasks: ``@app.task`` or ``@app.task(queue="images")``.

        Args:
            function: The function.
            queue: Name of its queue. Functions of one queue share the slots of its workers.
            name: Its name in the queue. None: that of the function.
            retry: The policy for its exceptions. None: each exception is final.
            time_limit: Seconds for it, from where it begins. A coroutine function is cancelled. A plain function's thread
                cannot be stopped: see `Tasks.worker`.
            dedup: Makes a key of the arguments: a second task with it is not made, and its handle is that of the first.
            pool: The pool of a plain function. None: threads. "process": for computing, a child process each. It is at the
                top of a module; what it is given, returns and raises is pickled; it is given the `Task` and nothing else
                of the app. A time limit kills it, and its death is a failed attempt of its task alone.

        Raises:
            ConfigError: A value cannot be, or the queue has a function of that name.
        """

        def decorate(made: Callable[..., Any]) -> AppTask[..., Any, Any]:
            return self._add(made, name, queue, retry=retry, time_limit=time_limit, dedup=dedup, pool=pool)

        return decorate if function is None else decorate(function)

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: float | None = None,
        zone: str = "UTC",
        missed: Literal["once", "skip"] = "once",
        queue: str = QUEUE,
        name: str | None = None,
        retry: Retry | None = None,
        time_limit: float | None = None,
    ) -> _TaskDecorator:
        """Make a function one that is called again and again, as a task: ``@app.schedule(every=60)``.

        The engine keeps the times, and each time is one task, however many processes work. A schedule stays when its function
        goes: remove it by ``await app.bus.tasks.unschedule("queue:name")``.

        Args:
            cron: Minute, hour, day of the month, month and day of the week: ``"0 3 * * *"``. Either this or `every`.
            every: Seconds between two calls, at least 0.1, the first of them from when the app works first.
            zone: The time zone of `cron`, as of `Tasks.schedule`: "Europe/Berlin".
            missed: The fate of times at which the engine's own server was down: one call, "once" it is back (default), or
                none ("skip").
            queue: As for `task`.
            name: As for `task`.
            retry: As for `task`.
            time_limit: As for `task`.

        Raises:
            ConfigError: A value cannot be, or the function has an argument without a default.
        """
        check_times(every, cron, missed)
        if isinstance(cron, int | float):
            raise ConfigError("cron", cron, f"must be text; seconds between calls are every={cron:g}")
        require("cron", cron, optional(text))
        if cron is not None:
            next_time(cron, 0.0, zone)
        times = Times(every, cron, zone, missed)

        def decorate(made: Callable[..., Any]) -> Any:
            return self._add(made, name, queue, retry=retry, time_limit=time_limit, every=times)

        return decorate

    def declare(self, name: str, signature: Callable[P, Coroutine[Any, Any, R]] | Callable[P, R]) -> AppTask[P, R, Any]:
        """Declare a task that other programs work on: ``resize = app.declare("images:resize", resize)``.

        Args:
            name: Queue and name.
            signature: A function with the signature; it is not called by workers.

        Raises:
            ConfigError: A value cannot be, or there is a function of that name.
        """
        queue, colon, own = name.rpartition(":")
        if not colon:
            raise ConfigError("name", name, 'must be "queue:name"')
        made: AppTask[P, R, Any] = self._add(signature, own, queue)
        made.declared = True
        return made

    def _add(
        self, function: Callable[..., Any], name: str | None, queue: str, **settings: Any
    ) -> AppTask[Any, Any, Any]:
        own = _name_of(function, name)
        check_subject("queue", queue)
        check_result("function", function)
        check_retry(settings.get("retry"))
        if settings.get("dedup") is not None:
            check_function(
                "dedup", settings["dedup"], "make the key of the arguments, or prepare(dedup=key) for one task"
            )
        require("time_limit", settings.get("time_limit"), optional(seconds))
        require("pool", settings.get("pool"), _pool)
        if settings.get("pool") is not None and is_async(function):
            raise ConfigError(
                "pool", settings["pool"], "is for plain functions", "a coroutine function runs on the loop"
            )
        qualified = getattr(function, "__qualname__", "<partial>")
        if settings.get("pool") == "process" and "<" in qualified:
            raise ConfigError(
                "pool",
                "process",
                f"{qualified} cannot be found by a process",
                "define it at the top of a module",
            )
        made: AppTask[..., Any, Any] = AppTask(self._state, function, own, queue, **settings)
        if made.title in self.tasks:
            raise ConfigError("name", made.title, "is the name of another function of the app", "pass name=")
        for each in inspect.signature(function).parameters.values() if made.every else ():
            if each.default is each.empty and each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}:
                raise ConfigError("function", made.title, f"is scheduled, and {each.name!r} has no default")
        self.tasks[made.title] = made
        return made

    @overload
    def call(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[P, AsyncIterator[R]], /
    ) -> AppStream[P, R, AsyncIterator[R]]: ...

    @overload
    def call(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AppCall[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def call(self, function: Callable[P, R], /) -> AppCall[P, R, R]: ...

    @overload
    def call(self, function: None = None, /, *, target: str = ..., name: str | None = ...) -> _CallDecorator: ...

    def call(self, function: Any = None, /, *, target: str = "app", name: str | None = None) -> Any:
        """Make a function one that is called, and answers at once: ``await add.call(1, b=2)``.

        The values of an asynchronous generator are streamed: ``async for prime in primes.stream(below=100)``.

        Args:
            function: The function.
            target: The target of its calls, as of `redpoll.bus.Rpc`; apps that serve one share its calls.
            name: Its name there. None: that of the function.

        Raises:
            ConfigError: A value cannot be, the name begins with an underscore, or the target has a function of it.
        """

        def decorate(made: Callable[..., Any]) -> AppCall[..., Any, Any] | AppStream[..., Any, Any]:
            own = _name_of(made, name)
            check_subject("target", target)
            kind: Any = AppStream if inspect.isasyncgenfunction(made) else AppCall
            call: AppCall[..., Any, Any] | AppStream[..., Any, Any] = kind(self._state, made, own, target)
            if call.name.startswith("_"):
                raise ConfigError(
                    "name", call.title, "begins with an underscore, and would not be served", "pass name="
                )
            if call.title in self.calls or call.title in self.streams:
                raise ConfigError("name", call.title, "is the name of another function of the app", "pass name=")
            if isinstance(call, AppStream):
                self.streams[call.title] = call
            else:
                self.calls[call.title] = call
            return call

        return decorate if function is None else decorate(function)

    def on(self, subject: str, *, durable: str | None = None) -> Callable[[F], F]:
        """Call a function with the body of each broadcast of some subjects: ``@app.on("state.*.finished")``.

        Its one argument is the body; another one, `Broadcast` with the default `GIVEN`, is all of it. In a process it
        is called with one broadcast after the other.

        Args:
            subject: The pattern, where ``*`` stands for one word and ``#`` for any number of them.
            durable: Name of a durable subscription: broadcasts wait for it, and the processes that work share them, so that
                each is handled once. None: every process that works receives every broadcast.

        Raises:
            ConfigError: It is no pattern.
        """
        check_subject("subject", subject, pattern=True)

        def decorate(function: F) -> F:
            check_function("function", function, "decorate a function")
            self.listeners.append(
                Listening(Function(self._state, function, function.__name__, subject), subject, durable)
            )
            return function

        return decorate

    @overload
    def group(self, chains: Iterable[AppChain[T]], *, collect: Literal[False] = False) -> AppGroup[T, T]: ...

    @overload
    def group(
        self, chains: Iterable[AppChain[T]], *, collect: Literal[True]
    ) -> AppGroup[T | None, T | BaseException]: ...

    def group(self, chains: Iterable[AppChain[Any]], *, collect: bool = False) -> AppGroup[Any, Any]:
        """Return chains as a group: ``await app.group(resize.chain(path) for path in paths).then(join).submit()``.

        Args:
            chains: The chains, of `AppTask.chain`.
            collect: False (default): the first failure decides. True: all outcomes are collected, and the task after the
                group begins however they end, with None in the place of each that failed.

        Raises:
            ConfigError: There is none, one twice, or something else.
        """
        return AppGroup(lambda: self._state.connected().tasks, chains, collect)

    # -- connecting

    @property
    def bus(self) -> Bus:
        """The bus, for all that is no function of the app.

        Raises:
            UsageError: The app is not started.
        """
        return self._state.connected()

    async def start(self, bus: Bus | None = None) -> Self:
        """Connect, on the running loop, to submit and to call.

        Args:
            bus: A bus that is entered already, to use instead; closing the app leaves it.

        Raises:
            ConfigError: An option or an annotation cannot be.
            DialFailed: The engine was not reached in time.
            UsageError: It is started.
        """
        if self._state.bus is not None:
            raise UsageError("the app is started", "close it first")
        called = (*self.calls.values(), *self.streams.values())
        for function in (*self.tasks.values(), *called, *(each.function for each in self.listeners)):
            function.shape  # noqa: B018  # what cannot be used is told here
        if bus is None:
            made = connect(self.url, **self._options)
            self._state.bus, self._owned = made, True
            try:
                await made.__aenter__()
            except BaseException:
                self._state.bus = None
                raise
        else:
            self._state.bus, self._owned = bus, False
        return self

    async def close(self, drain: float | None = 0.0) -> None:
        """Disconnect; it can be started again.

        Args:
            drain: As for `Bus.close`.
        """
        bus = self._state.bus
        try:
            # Handlers that finish meanwhile use the app.
            if bus is not None and self._owned:
                await bus.close(drain)
        finally:
            if self._state.bus is bus:
                self._state.bus = None

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this app in a thread without an event loop: ``task = app.wait(resize.submit("a.png"))``.

        For programs of threads, as those of Django and Flask: everything of the app that is awaited can be waited for, in any
        thread, ``app.wait(task.result(timeout=60))`` too. The first call connects, by a connection of its own on the loop
        of `redpoll.blocking`, which lasts until the process ends, or the block of ``with app:``. A forked process connects
        anew.

        Args:
            coroutine: The coroutine.

        Returns:
            Its result.

        Raises:
            UsageError: This thread runs an event loop, which would be blocked.
            ConfigError: It is not a coroutine.
            DialFailed: The engine was not reached in time.
            Exception: The coroutine raised it.

        Ctrl-C cancels the coroutine.
        """
        if not inspect.iscoroutine(coroutine):
            raise ConfigError("coroutine", coroutine, "must be a coroutine: call the function, app.wait(f.submit(1))")
        begun: list[bool] = []

        def begin(_: Bus) -> Coroutine[Any, Any, T]:
            begun.append(True)
            return coroutine

        try:
            if asyncio._get_running_loop() is not None:
                raise UsageError("this would block the thread of the event loop", "await it")
            return self._state.threads.run(begin)
        finally:
            if not begun:
                coroutine.close()

    def __enter__(self) -> Self:
        """Do nothing: `wait` connects."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection of `wait`."""
        self._state.leave()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    def work(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        drain: float | None = _DRAIN,
    ) -> Working:
        """Handle in this process: ``async with app, app.work(): ...``; `redpoll run` does that in several.

        Args:
            queues: Work on the tasks of these alone, and on nothing else; None: of all, and serve calls and broadcasts too.
            concurrency: Tasks at a time, of each queue. None: 8.
            drain: Seconds that handlers have to finish when the block is left. None: no limit.

        Raises:
            ConfigError: A queue has no function here.
        """
        here = [each for each in self.tasks.values() if not each.declared]
        if isinstance(queues, str):
            raise ConfigError("queues", queues, "must be a list of names")
        for queue in queues or ():
            if queue not in {each.queue for each in here}:
                raise ConfigError("queues", queue, "is a queue without a function of the app")
        return Working(
            self._state,
            [each for each in here if queues is None or each.queue in queues],
            [] if queues is not None else [*self.calls.values(), *self.streams.values()],
            [] if queues is not None else self.listeners,
            [self],
            None if self._lifespan is None else self._lifespan(self),
            concurrency,
            drain,
        )


def _name_of(function: object, name: object) -> str:
    """Return the name of a function that is decorated."""
    check_function("function", function, "decorate a function")
    found = getattr(function, "__name__", None) if name is None else name
    if not isinstance(found, str) or not found:
        raise ConfigError("name", found, "must be text, not empty", "pass name=")
    return found
