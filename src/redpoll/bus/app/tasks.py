"""Functions whose calls are tasks, and chains and groups of these."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack

from redpoll.bus.app.functions import AppState, Function
from redpoll.bus.app.middleware import Work
from redpoll.bus.records import Times
from redpoll.bus.tasks import Chain, Group, Handle, Parts, Retry
from redpoll.bus.tasks.chains import ChainOptions
from redpoll.bus.tasks.tasks import MAP_LIMIT, check_map, mapped
from redpoll.errors import ConfigError, UsageError

__all__ = ["AppChain", "AppGroup", "AppTask", "Pool", "SubmitOptions"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
C = TypeVar("C")
X = TypeVar("X")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)

Pool = Literal["thread", "process"]


class SubmitOptions(ChainOptions, total=False):
    """Options of submitting, as of `Tasks.submit`."""

    timeout: float | None


class AppTask(Function[P, R, C]):
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
    """

    def __init__(
        self,
        state: AppState,
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
        super().__init__(state, function, name, f"{queue}:{name}")
        self.queue = queue
        self.retry = retry
        self.time_limit = time_limit
        self.dedup = dedup
        self.every = every
        self.pool = pool

    def prepare(self, **options: Unpack[SubmitOptions]) -> AppTask[P, R, C]:
        """Return the same task with options of submitting: ``await resize.prepare(delay=60).submit("a.png")``.

        Args:
            **options: Those of `Tasks.submit`, beside data, queue and declare.

        Raises:
            TypeError: There is no such option.
        """
        return self._with(options, SubmitOptions)

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

        Leaving the loop cancels those that are open: see `Tasks.map`.

        Args:
            items: The first argument of each.
            *args: The other arguments, of all of them.
            **kwargs: The same by name.

        Raises:
            UsageError: The tasks were given a key by `prepare`, which would make one of all.
        """
        check_map(MAP_LIMIT, self.options)
        async with aclosing(mapped(lambda each: self._send((each, *args), kwargs), items, MAP_LIMIT)) as results:
            async for each in results:
                yield each

    def chain(self, *args: P.args, **kwargs: P.kwargs) -> AppChain[R]:
        """Return a task with these arguments that is not submitted yet, as the first of a chain, or one of a group.

        ``await resize.chain("a.png").then(publish, to="web").submit()``. The tasks of a chain do not go
        through the middleware of submitting; their options are those of `prepare`, beside a timeout.

        Raises:
            TypeError: The function has no such arguments, or a task in a chain has no such option.
            UsageError: The function has keys made of its arguments (`dedup`), of which one may be a result: give the last
                task its key by ``prepare(dedup=…)``, or another one none by ``prepare(dedup=None)``.
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

        state = self._state
        options: dict[str, Any] = dict(self.options)
        if self.dedup is not None and "dedup" not in options:
            raise UsageError(
                f"{self.title} makes keys of its arguments, and is given some of them later",
                "prepare(dedup=…) gives the last task of a chain its key, prepare(dedup=None) another one none",
            )
        return AppChain(
            Parts(lambda: state.connected().tasks, data, self.queue, options, before, collect, self.shape.result)
        )

    async def _send(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        values = self.shape.bind(args, kwargs)
        options: dict[str, Any] = dict(self.options)
        if self.dedup is not None and options.get("dedup") is None:
            options["dedup"] = self.dedup(*args, **kwargs)
        return await self._submitting(self._last)(Work("task", self.title, values, options))

    async def _last(self, work: Work) -> Handle[R]:
        tasks = self._state.connected().tasks
        handle = await tasks.submit(self._packed(work.arguments), self.queue, **work.options)
        return handle.read_by(self.shape.result)

    def _packed(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the data of a task with these arguments."""
        return [self.name, self.shape.to_wire(arguments, text=self._state.text)]


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
            UsageError: As for `AppTask.chain`.
            ConfigError: It is no task of an app.
        """
        return _known(task)._after((self,), False, False, args, kwargs)


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
            Exception: As for `AppChain.then`.
        """
        return _known(task)._after(self._chains, True, self._collect, args, kwargs)


def _known(task: AppTask[P, R, C]) -> AppTask[P, R, C]:
    """Check that a task is one."""
    if not isinstance(task, AppTask):
        raise ConfigError("task", task, "must be a function that @app.task made a task")
    return task
