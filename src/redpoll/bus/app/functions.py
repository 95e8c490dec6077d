"""Decorated functions: still themselves when they are called, and submitted or called elsewhere by their methods."""

from __future__ import annotations

import atexit
import copy
import functools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from redpoll.bus.app.middleware import Middleware, Proceed, Work, chain
from redpoll.bus.app.shapes import Extra, Shape
from redpoll.bus.bus import Bus
from redpoll.bus.process_bus import ProcessBus
from redpoll.bus.records import Times
from redpoll.bus.rpc.caller import CallOptions
from redpoll.bus.tasks import Chain, Group, Handle, Parts, Retry
from redpoll.checks import is_async
from redpoll.errors import BadPayload, RemoteError, UsageError

__all__ = [
    "AppCall",
    "AppChain",
    "AppGroup",
    "AppStream",
    "AppTask",
    "Desk",
    "Function",
    "Pool",
    "StreamOptions",
    "SubmitOptions",
]

P = ParamSpec("P")
Q = ParamSpec("Q")
#: The result, and what a call of the function itself returns: a coroutine of that, or the same.
R = TypeVar("R")
C = TypeVar("C")
X = TypeVar("X")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


class SubmitOptions(TypedDict, total=False):
    """Options of submitting, as of `Tasks.submit`."""

    dedup: str | None
    delay: float
    eta: datetime | None
    priority: int
    ttl: float | None
    deadline: float | None
    headers: Mapping[str, Any] | None
    no_reply: bool
    timeout: float | None


Pool = Literal["thread", "process"]


class Desk:
    """The state that the functions of an app share.

    Args:
        middleware: The middleware of the app.
        extra: The fate of arguments that a function does not have.
        url: The bus.
        options: Its options.

    Attributes:
        bus: The bus, while the app is started.
        threads: The bus of threads without a loop, which is connected when it is used first.
    """

    def __init__(self, middleware: Iterable[Middleware], extra: Extra, url: str, options: Mapping[str, Any]) -> None:
        self.middleware = list(middleware)
        self.extra = extra
        self.bus: Bus | None = None
        self.threads = ProcessBus(url, self._close_at_exit, **options)

    def connected(self) -> Bus:
        """Return the bus: that of threads on its own loop, the one of `App.start` elsewhere.

        Raises:
            UsageError: The app is not started.
        """
        if self.threads.is_here:
            return self.threads.enter()[1]
        if self.bus is None:
            raise UsageError("the app is not started", "async with app: ..., or app.wait(…) without a loop")
        return self.bus

    def _close_at_exit(self, bus: Bus) -> Bus:
        atexit.register(self.threads.close)
        return bus

    def leave(self) -> None:
        """Close the bus of threads, if there is one here."""
        atexit.unregister(self.threads.close)
        self.threads.close()

    @property
    def text(self) -> bool:
        """True if the serializer of the bus has no bytes."""
        return self.connected().payloads.writer == "json"


class Function:
    """A function of an app.

    Args:
        desk: The state that it shares with the others.
        function: The function.
        name: Its name.
        title: Its name with its queue or target.

    Attributes:
        function: The function.
        name: Its name.
        title: Its name with its queue or target.
        declared: True if it is known by its signature alone.
    """

    __name__: str

    def __init__(self, desk: Desk, function: Callable[..., Any], name: str, title: str) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self._desk = desk
        self.function = function
        self.name = name
        self.title = title
        self.declared = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title!r}>"

    @functools.cached_property
    def shape(self) -> Shape:
        """Its arguments and its result, read when they are used first: annotations may name what stands behind it."""
        return Shape(self.function, self.title, self._desk.extra)

    @functools.cached_property
    def is_async(self) -> bool:
        """True if it is a coroutine function."""
        return is_async(self.function)

    def _submitting(self, last: Proceed) -> Proceed:
        return chain(self._desk.middleware, "submit", last) if self._desk.middleware else last


class AppTask(Function, Generic[P, R, C]):
    """A function whose calls are tasks. Made by `App.task`, `App.schedule` or `App.declare`.

    It is called as the function that it is: ``resize("a.png")``. Errors of its other methods are those of `Tasks.submit` and
    `Handle.result`, `EncodeError` for arguments that cannot be sent, and `TypeError` for those that it does not have.

    Attributes:
        queue: Name of its queue.
        retry: The policy for its exceptions.
        time_limit: Seconds for it.
        dedup: Makes the key of a task of its arguments.
        every: Its times, if it is scheduled.
        pool: The pool in which it runs.
        options: The options with which it is submitted.
    """

    def __init__(
        self,
        desk: Desk,
        function: Callable[..., Any],
        name: str,
        queue: str,
        *,
        retry: Retry | None = None,
        time_limit: float | None = None,
        dedup: Callable[..., str] | None = None,
        every: Times | None = None,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(desk, function, name, f"{queue}:{name}")
        self.queue = queue
        self.retry = retry
        self.time_limit = time_limit
        self.dedup = dedup
        self.every = every
        self.pool = pool
        self.options: SubmitOptions = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function itself, here."""
        found: C = self.function(*args, **kwargs)
        return found

    def prepare(self, **options: Unpack[SubmitOptions]) -> AppTask[P, R, C]:
        """Return the same task with options of submitting: ``await resize.prepare(delay=60).submit("a.png")``.

        Args:
            **options: Those of `Tasks.submit`, beside data, queue and declare.
        """
        made = copy.copy(self)
        made.options = {**self.options, **options}
        return made

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submit a task with these arguments; it is in its queue when this returns.

        Raises:
            UsageError: The app is not started.

        Cancelled, it withdraws a task that waits for room in the queue; a task that was sent may be in the queue.
        """
        handle: Handle[R] = await self._send(args, kwargs)
        return handle

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit a task with these arguments, and wait for its result. Cancelling it ends the waiting, not the task."""
        handle: Handle[R] = await self._send(args, kwargs)
        return await handle.result()

    async def map(
        self: AppTask[Concatenate[X, Q], R, Any], items: Iterable[X], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> AsyncGenerator[R, None]:
        """Iterate over the results of many tasks, in the order of the items, of which 64 are open at most.

        The tasks go neither through the middleware of submitting nor through `dedup`. Leaving the loop cancels those that
        are open: see `Tasks.map`.

        Args:
            items: The first argument of each.
            *args: The other arguments, of all of them.
            **kwargs: The same by name.
        """
        tasks = self._desk.connected().tasks
        values = (self._packed(self.shape.bind((each, *args), kwargs)) for each in items)
        options: dict[str, Any] = dict(self.options)
        async with aclosing(tasks.map(values, self.queue, **options)) as results:
            async for each in results:
                yield self.shape.result(each)

    def chain(self, *args: P.args, **kwargs: P.kwargs) -> AppChain[R]:
        """Return a task with these arguments that is not submitted yet, as the first of a chain, or one of a group.

        ``await resize.chain("a.png").then(publish, to="web").submit()``. The tasks of a chain go neither through the
        middleware of submitting nor through `dedup`; their options are those of `prepare`, beside a timeout.

        Raises:
            TypeError: The function has no such arguments, or a task in a chain has no such option.
        """
        return self._made(self.shape.bind(args, kwargs), [], (), False)

    def _after(
        self,
        before: tuple[Chain[Any], ...],
        many: bool,
        collect: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> AppChain[R]:
        """Return a task after others, which is given their results, or the one's, as its first argument."""
        values = self.shape.bind((None, *args), kwargs)
        values.pop(self.shape.names[0], None)
        return self._made(values, [many], before, collect)

    def _made(
        self, values: dict[str, Any], given: list[bool], before: tuple[Chain[Any], ...], collect: bool
    ) -> AppChain[R]:
        def data() -> list[Any]:
            return [*self._packed(values), *given]

        desk = self._desk
        options: dict[str, Any] = dict(self.options)
        return AppChain(
            Parts(lambda: desk.connected().tasks, data, self.queue, options, before, collect, self.shape.result)
        )

    async def _send(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        values = self.shape.bind(args, kwargs)
        options: dict[str, Any] = dict(self.options)
        if self.dedup is not None and options.get("dedup") is None:
            options["dedup"] = self.dedup(*args, **kwargs)
        return await self._submitting(self._last)(Work("task", self.title, values, options))

    async def _last(self, work: Work) -> Handle[R]:
        tasks = self._desk.connected().tasks
        handle = await tasks.submit(self._packed(work.arguments), self.queue, **work.options)
        return handle.read_by(self.shape.result)

    def _packed(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the data of a task with these arguments."""
        return [self.name, self.shape.to_wire(arguments, text=self._desk.text)]


class AppChain(Chain[T_co]):
    """A chain of functions, typed by the result of the last one. Made by `AppTask.chain`."""

    __slots__ = ()

    def then(
        self: AppChain[X], task: AppTask[Concatenate[X, Q], R, Any], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> AppChain[R]:
        """Return this chain with another task after it, whose first argument is the result of this one.

        Args:
            task: The function, perhaps with options: ``store.prepare(priority=1)``.
            *args: Its other arguments.
            **kwargs: The same by name.

        Raises:
            TypeError: The function has no such arguments, or a task in a chain has no such option.
        """
        return task._after((self,), False, False, args, kwargs)


class AppGroup(Group[T_co, E_co]):
    """A group of chains of functions. Made by `App.group`. Its types are that of a result for the task after it, and here."""

    __slots__ = ()

    def then(
        self: AppGroup[X, Any], task: AppTask[Concatenate[list[X], Q], R, Any], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> AppChain[R]:
        """Return a chain with a task after all of these, whose first argument is a list of their results, in order.

        Where the outcomes are collected, it has None in the place of each that failed; `Task.results` says why.

        Args:
            task: As for `AppChain.then`, as what follows.
            *args: Its other arguments.
            **kwargs: The same by name.

        Raises:
            TypeError: As for `AppChain.then`.
        """
        return task._after(self._chains, True, self._collect, args, kwargs)


class AppCall(Function, Generic[P, R, C]):
    """A function that is called by others, and answers at once. Made by `App.call`.

    It is called as the function that it is. The errors of its other methods are those of `redpoll.bus.Rpc`, and `BadPayload`
    with the path of the field where the arguments do not fit.

    Attributes:
        target: The target of its calls.
        options: The settings of its calls.
    """

    def __init__(self, desk: Desk, function: Callable[..., Any], name: str, target: str) -> None:
        super().__init__(desk, function, name, f"{target}.{name}")
        self.target = target
        self.options: CallOptions = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function itself, here."""
        found: C = self.function(*args, **kwargs)
        return found

    def prepare(self, **options: Unpack[CallOptions]) -> AppCall[P, R, C]:
        """Return the same call with settings: ``await add.prepare(timeout=3, wait=10).call(1, 2)``.

        Args:
            **options: Those of `redpoll.bus.Rpc.call`: timeout, retry, wait, mandatory, monitor, headers.
        """
        made = copy.copy(self)
        made.options = {**self.options, **options}
        return made

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it at a server, and wait for the answer. Cancelling tells the server."""
        work = Work("call", self.title, self.shape.bind(args, kwargs), dict(self.options))
        value: R = await self._submitting(self._last)(work)
        return value

    async def cast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call it at a server, without an answer; done when a queue has it. Cancelled, the call may be made nevertheless."""
        work = Work("call", self.title, self.shape.bind(args, kwargs), dict(self.options))
        await self._submitting(self._last_cast)(work)

    async def _last(self, work: Work) -> Any:
        values = self.shape.to_wire(work.arguments, text=self._desk.text)
        try:
            answer = await self._desk.connected().rpc.call(self.target, self.name, values, **work.options)
        except RemoteError as error:
            raise _refused(error) from error
        return self.shape.result(answer)

    async def _last_cast(self, work: Work) -> None:
        values = self.shape.to_wire(work.arguments, text=self._desk.text)
        await self._desk.connected().rpc.cast(self.target, self.name, values, **work.options)


class StreamOptions(TypedDict, total=False):
    """Options of a stream, as of `redpoll.bus.Rpc.stream`."""

    timeout: float | None
    wait: float
    headers: Mapping[str, Any] | None


class AppStream(Function, Generic[P, R, C]):
    """An asynchronous generator that others call, and whose values are streamed to them. Made by `App.call`.

    It is called as the function that it is. Errors of `stream` are those of `redpoll.bus.Rpc.stream`, and `BadPayload` as for
    `AppCall`.

    Attributes:
        target: The target of its calls.
        options: The options of its calls.
    """

    def __init__(self, desk: Desk, function: Callable[..., Any], name: str, target: str) -> None:
        super().__init__(desk, function, name, f"{target}.{name}")
        self.target = target
        self.options: StreamOptions = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function itself, here."""
        found: C = self.function(*args, **kwargs)
        return found

    def prepare(self, **options: Unpack[StreamOptions]) -> AppStream[P, R, C]:
        """Return the same stream with options: ``primes.prepare(timeout=3).stream(below=100)``.

        Args:
            **options: Those of `redpoll.bus.Rpc.stream`: timeout, wait, headers.
        """
        made = copy.copy(self)
        made.options = {**self.options, **options}
        return made

    async def stream(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Call it at a server, and iterate over its values as they come; the server waits for a caller that is slow.

        Leaving the loop stops the server; leave by `contextlib.aclosing` where the loop may be left early. The call does not
        go through the middleware of submitting.
        """
        values = self.shape.to_wire(self.shape.bind(args, kwargs), text=self._desk.text)
        parts = self._desk.connected().rpc.stream(self.target, self.name, values, **self.options)
        async with aclosing(parts):
            try:
                async for each in parts:
                    yield self.shape.result(each)
            except RemoteError as error:
                raise _refused(error) from error


def _refused(error: RemoteError) -> Exception:
    """Return the error of a call: `BadPayload` again, where the server could not read its arguments."""
    if error.kind != BadPayload.__name__:
        return error
    return BadPayload("typed", error.text.partition("'typed': ")[2] or error.text)
