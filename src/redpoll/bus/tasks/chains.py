"""Chains and groups: tasks that are submitted together, of which some come after others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack

from redpoll.bus.tasks.handle import Handle
from redpoll.checks import flag, require
from redpoll.errors import ConfigError

__all__ = [
    "QUEUE",
    "Chain",
    "ChainOptions",
    "Group",
    "MapOptions",
    "Parts",
    "RunOptions",
    "Submits",
    "TaskChain",
    "TaskGroup",
    "in_order",
]

QUEUE: Final = "tasks"
"""The queue of tasks that name none."""

R_co = TypeVar("R_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


class ChainOptions(TypedDict, total=False):
    """Options of a task in a chain, as of `Tasks.submit`.

    The first tasks may have a delay, and the last one a key, which is that of all.
    """

    dedup: str | None
    delay: float
    eta: datetime | None
    priority: int
    ttl: float | None
    deadline: float | None
    headers: Mapping[str, Any] | None
    no_reply: bool


class RunOptions(ChainOptions, total=False):
    """Options of `Tasks.run`, as of `Tasks.submit`."""

    declare: bool


class MapOptions(RunOptions, total=False):
    """Options of `Tasks.map`, as of `Tasks.submit`."""

    timeout: float | None


class Submits(Protocol):
    """The tasks of a bus, as chains need them."""

    async def _submit_chains(self, chains: Sequence[Chain[Any]], timeout: float | None) -> list[Handle[Any]]:
        """Submit chains, in one step; return the handles of their last tasks."""
        ...

    async def _run_chains(self, chains: Sequence[Chain[Any]], timeout: float | None, collect: bool) -> list[Any]:
        """Submit chains, in one step, and return the results of their last tasks."""
        ...


class Parts:
    """The arguments of one task of a chain, until it is submitted.

    Args:
        tasks: Returns the tasks of the bus, when it is submitted.
        data: Returns the data of the task, then.
        queue: Name of the queue.
        options: The options.
        before: The chains that it comes after.
        collect: True if it begins however these end.
        read: Converts its result; None does not.

    Raises:
        TypeError: There is no such option.
    """

    __slots__ = ("before", "collect", "data", "options", "queue", "read", "tasks")

    def __init__(
        self,
        tasks: Callable[[], Submits],
        data: Callable[[], Any],
        queue: str,
        options: Mapping[str, Any],
        before: tuple[Chain[Any], ...] = (),
        collect: bool = False,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        unknown = sorted(options.keys() - ChainOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"a task in a chain has no option {unknown[0]!r}")
        self.tasks = tasks
        self.data = data
        self.queue = queue
        self.options = options
        self.before = before
        self.collect = collect
        self.read = read


class Chain(Generic[R_co]):
    """A task that is not submitted yet, with those that it comes after. Its type is that of its result.

    It may be submitted more than once, each time as other tasks, and be part of several groups. All of it is submitted in
    one step: at most 10,000 tasks, with data of at most `Capabilities.max_body` together.

    Each task is begun once all that it comes after have their results, and is given these. Where one of them fails, is
    cancelled, expires or becomes a dead letter, the tasks after it are cancelled in the same step, and say why:
    `TaskCancelled.reason`. A queue's own `ttl`, and that of a task, count from when the chain is submitted.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._parts.queue!r} after {len(self._parts.before)}>"

    async def submit(self, *, timeout: float | None = None) -> Handle[R_co]:
        """Submit all of it: the queues have all of its tasks when this returns, or none. A queue is declared as needed.

        Args:
            timeout: Seconds to wait for room in the queues, and for the confirmation. None: no limit.

        Returns:
            The handle of the last task.

        Raises:
            Unsupported: The engine has no such tasks: ``amqp://``.
            UsageError: There are too many, or more than a queue holds; they are of several buses; one after others has a
                delay; or another than the last has a key.
            Exception: As `Tasks.submit` does. After `NotConfirmed` it can be submitted again where the last task has a key
                (`dedup`).

        Cancelled, it withdraws what waits for room; what was sent may be in the queues.
        """
        (handle,) = await self._parts.tasks()._submit_chains([self], timeout)
        return handle

    async def run(self, *, timeout: float | None = None) -> R_co:
        """Submit all of it, and wait for the result of the last task. Cancelling it ends the waiting, not the tasks.

        Args:
            timeout: Seconds for all of it. None: no limit.

        Raises:
            Exception: As `submit` and `Handle.result` do.
        """
        found: list[R_co] = await self._parts.tasks()._run_chains([self], timeout, False)
        return found[0]


class Group(Generic[R_co, E_co]):
    """Chains whose results are wanted together, in order. Its types are those of a result after it, and here.

    Args:
        tasks: Returns the tasks of the bus.
        chains: The chains.
        collect: False: the first failure decides. True: all outcomes are collected.

    Raises:
        ConfigError: It is empty, or has something else than chains.
    """

    __slots__ = ("_chains", "_collect", "_tasks")

    def __init__(self, tasks: Callable[[], Submits], chains: Iterable[Chain[Any]], collect: bool) -> None:
        require("collect", collect, flag)
        self._tasks = tasks
        self._chains = tuple(chains)
        self._collect = collect
        if not self._chains:
            raise ConfigError("chains", self._chains, "must be one chain at least")
        for each in self._chains:
            if not isinstance(each, Chain):
                raise ConfigError("chains", each, "must be chains", "task.chain(…) makes one of a task")
        if len(set(self._chains)) < len(self._chains):
            raise ConfigError("chains", self._chains, "must not have a chain twice", "make two of them")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._chains)}>"

    async def submit(self, *, timeout: float | None = None) -> list[Handle[R_co]]:
        """Submit all of it, in one step; the arguments and the errors are those of `Chain.submit`.

        Returns:
            The handles of the chains' last tasks, in order.
        """
        return await self._tasks()._submit_chains(self._chains, timeout)

    async def run(self, *, timeout: float | None = None) -> list[E_co]:
        """Submit all of it, and wait for the results, in order. Cancelling it ends the waiting, not the tasks.

        Args:
            timeout: Seconds for all of it. None: no limit.

        Returns:
            The results; with `collect` an exception in the place of each that failed.

        Raises:
            Exception: As `submit` and `Handle.result` do: the first failure, unless all are collected.
            TimeoutError: Outcomes are missing; the tasks continue.
        """
        return await self._tasks()._run_chains(self._chains, timeout, self._collect)


class TaskChain(Chain[Any]):
    """A chain of tasks with data of any kind. Made by `Tasks.chain`."""

    __slots__ = ()

    def then(self, data: Any, queue: str = QUEUE, **options: Unpack[ChainOptions]) -> TaskChain:
        """Return this chain with another task after it: `Task.results` has the result of this one.

        Args:
            data: The data of the task.
            queue: Name of the queue.
            **options: As for `Tasks.chain`.
        """
        return TaskChain(Parts(self._parts.tasks, lambda: data, queue, options, (self,)))


class TaskGroup(Group[Any, Any]):
    """A group of chains with data of any kind. Made by `Tasks.group`."""

    __slots__ = ()

    def then(self, data: Any, queue: str = QUEUE, **options: Unpack[ChainOptions]) -> TaskChain:
        """Return a chain with a task after all of these: `Task.results` has their results, in order.

        With `collect` that has an exception in the place of each that failed.

        Args:
            data: The data of the task.
            queue: Name of the queue.
            **options: As for `Tasks.chain`.
        """
        return TaskChain(Parts(self._tasks, lambda: data, queue, options, self._chains, self._collect))


def in_order(chains: Iterable[Chain[Any]]) -> list[Parts]:
    """Return the tasks of chains, each once, behind those that it comes after. Chains may be of any length."""
    found: dict[Parts, None] = {}
    todo = [each._parts for each in chains][::-1]
    while todo:
        parts = todo[-1]
        missing = [] if parts in found else [each._parts for each in parts.before if each._parts not in found]
        if missing:
            todo.extend(reversed(missing))
        else:
            found[todo.pop()] = None
    return list(found)
