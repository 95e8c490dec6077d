"""Tasks of a bus: submitting them, finding them again, working on them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, Unpack
from weakref import WeakValueDictionary

from redpoll.bus.awaitables import OutcomeFuture, close_all
from redpoll.bus.context import CURRENT, OUTSIDE, check_headers, inherit
from redpoll.bus.engine import Delivery, Engine
from redpoll.bus.envelope import OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.records import Publication, QueueSpec, Receipt, Step, Times, check_subject
from redpoll.bus.tasks.chains import (
    QUEUE,
    Chain,
    ChainOptions,
    MapOptions,
    Parts,
    RunOptions,
    TaskChain,
    TaskGroup,
    in_order,
)
from redpoll.bus.tasks.handle import Handle, KnownWatch, Watch, error_of
from redpoll.bus.tasks.retry import Retry
from redpoll.bus.tasks.task import Claim, Task
from redpoll.bus.tasks.worker import Plan, Worker
from redpoll.checks import Check, duration, integer, optional, require, seconds
from redpoll.errors import BatchError, ConfigError, NoRoute, QueueEmpty, RedpollError, SpecConflict, UsageError

__all__ = ["MAP_LIMIT", "QUEUE", "Tasks", "check_map", "mapped"]

T = TypeVar("T")

MAP_LIMIT: Final = 64
"""Tasks of `Tasks.map` that are submitted and not yet yielded, where nothing else is said."""
#: Seconds that an eta may lie in the past: clocks differ, and it was to be soon.
_PAST: Final = 60.0
_TIMES: Final[tuple[tuple[str, Check], ...]] = (
    ("delay", duration),
    ("ttl", optional(seconds)),
    ("deadline", optional(seconds)),
    ("timeout", optional(duration)),
)
_priority: Final = integer(0, 31)
_limit: Final = integer(1, 2**31)


def _datetime(value: object) -> str | None:
    return None if isinstance(value, datetime) else f"must be a datetime, not {type(value).__name__}"


_RESULT: Final = OutcomeKind.RESULT


class Tasks:
    """Work that is done once, by one of many workers: ``bus.tasks``.

    A queue that does not exist is declared with the defaults of `QueueSpec`, unless `declare` is False: `NoRoute` then, so
    that a mistyped name swallows nothing. To have it otherwise, declare it first (``bus.queues.declare``).

    Args:
        engine: The engine of the queues.
        payloads: The serializers.
        allowed: The exceptions of handlers that are rebuilt with their own types.
    """

    def __init__(self, engine: Engine, payloads: Payloads, allowed: AllowedExceptions) -> None:
        self._engine = engine
        self._payloads = payloads
        self._allowed = allowed
        # Levels of priority, of queues to which something was submitted with one.
        self._levels: dict[str, int] = {}
        self._workers: set[Worker] = set()
        # Of handles for ids.
        self._known: WeakValueDictionary[str, KnownWatch] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Tasks of {self._engine!r}>"

    @property
    def in_place(self) -> bool:
        """True if all workers receive tasks, as far as the engine knows."""
        return all(worker.active for worker in self._workers)

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop all workers, and wait some seconds for their handlers, threads aside; for the bus."""
        await close_all(worker.close(drain, threads=False) for worker in tuple(self._workers))

    # -- submitting

    async def submit(
        self,
        data: Any,
        queue: str = QUEUE,
        *,
        dedup: str | None = None,
        delay: float = 0.0,
        eta: datetime | None = None,
        priority: int = 0,
        ttl: float | None = None,
        deadline: float | None = None,
        headers: Mapping[str, Any] | None = None,
        no_reply: bool = False,
        declare: bool = True,
        timeout: float | None = None,
    ) -> Handle[Any]:
        """Put a task into a queue; it is there as surely as the queue can say (`Capabilities.confirm`) when this returns.

        Args:
            data: The data of the task.
            queue: Name of the queue.
            dedup: A key of at most 255 bytes: a second task with it in this queue is not made, and the handle is that of
                the first (for an hour and until that has ended, and a million keys, unless the engine was told otherwise).
            delay: Seconds before it can be begun; the engine keeps it, not a worker.
            eta: The earliest time to begin it, instead of `delay`; an aware datetime. One of the last minute is now.
            priority: Higher ones are begun first; 0 (default) to one less than the `priorities` of the queue.
            ttl: Seconds after which it expires if it was not begun. None: what the queue says.
            deadline: Seconds after which it expires even if it was begun, and its worker is asked to stop. Instead of `ttl`.
                Waiting for room in the queue counts, for both.
            headers: A context for the handler, beside that of the running one (`use_headers`): `Task.headers`.
            no_reply: Store and send no result.
            declare: Declare the queue if it does not exist.
            timeout: Seconds to wait for room in the queue, and for the confirmation. None: no limit, beside that of an
                engine that is away (30 s for `redpoll://`).

        Raises:
            EncodeError: The serializer cannot carry the data.
            PayloadTooLarge: It is over the limit of the engine.
            NoRoute: The queue does not exist, and was not to be declared. Never sent.
            QueueFull: The queue is full, and refuses. Never sent.
            Expired: There was no room, or no connection, in time: that of `timeout`, `ttl` or `deadline`. Never sent.
            NotConfirmed: It was sent, and no confirmation came; with `dedup` it can be submitted again.
            ConfigError: A time, a priority, a key or a header cannot be, the queue has no such priority, or an eta has no
                time zone or is in the past.
            Unsupported: The engine has no delays, dedup keys or priorities.
            NotAuthorized: It is not allowed.
            Closed: The bus is closed.

        Until its outcome is there the task is watched, which takes some memory, also where the handle was dropped; with
        `no_reply` it is not.

        Cancelled, it withdraws a task that waits for room; a task that was sent may be in the queue.
        """
        if headers is not None:
            check_headers(headers)
        given = eta is not None or dedup is not None or ttl is not None or deadline is not None or timeout is not None
        if given or priority or delay:
            delay = await self._check(queue, priority, delay, eta, dedup, declare, ttl, deadline, timeout)
        if CURRENT.get() is not OUTSIDE:
            headers = inherit(headers, None)[0]
        envelope = self._payloads.pack(data, None, headers)
        watch = None if no_reply else Watch()

        def send() -> Awaitable[Receipt]:
            return self._engine.publish(
                envelope,
                queue=queue,
                watcher=watch,
                priority=priority,
                delay=delay,
                ttl=ttl,
                deadline=deadline,
                dedup=dedup,
                keep=not no_reply,
                timeout=timeout,
            )

        # As `_routed`, without a coroutine more for each task.
        try:
            receipt = await send()
        except NoRoute:
            if not declare:
                raise
            await self._declare(queue)
            receipt = await send()
        return Handle(self._engine, self._payloads, self._allowed, receipt, watch)

    async def _routed(self, queue: str, declare: bool, send: Callable[[], Awaitable[T]]) -> T:
        """Do something with a queue, which is declared if it does not exist and is to be."""
        try:
            return await send()
        except NoRoute:
            if not declare:
                raise
        await self._declare(queue)
        return await send()

    async def _check(
        self,
        queue: str,
        priority: int,
        delay: float,
        eta: datetime | None,
        dedup: str | None,
        declare: bool,
        *times: float | None,
    ) -> float:
        """Check options that are invalid, or that not every engine and queue has; return the delay."""
        for (name, check), value in zip(_TIMES, (delay, *times), strict=True):
            require(name, value, check)
        require("priority", priority, _priority)
        capabilities = self._engine.capabilities
        if eta is not None:
            require("eta", eta, _datetime)
            if delay:
                raise UsageError("a task has a delay or an eta, not both", "pass one of delay= and eta=")
            if eta.tzinfo is None:
                raise ConfigError("eta", eta, "must have a time zone")
            delay = (eta - datetime.now(UTC)).total_seconds()
            if delay < -_PAST:
                raise ConfigError(
                    "eta", eta, f"is {-delay:.0f} s in the past", "leave it out to begin the task at once"
                )
            delay = max(0.0, delay)
            problem = duration(delay)
            if problem is not None:
                raise ConfigError("eta", eta, f"is too far away: {problem}")
        if delay:
            capabilities.require("delay", "delays")
        if dedup is not None:
            capabilities.require("dedup", "dedup keys")
        if priority:
            capabilities.require("priorities", "priorities")
            levels = self._levels.get(queue)
            if levels is None or priority >= levels:
                # It may have been made anew since.
                if declare:
                    await self._declare(queue)
                levels = self._levels[queue] = (await self._engine.inspect(queue)).spec.priorities
            if priority >= levels:
                del self._levels[queue]
                raise ConfigError(
                    "priority",
                    priority,
                    f"must be {f'0 to {levels - 1}' if levels > 1 else 0} in queue {queue!r}",
                    f"declare the queue with priorities={max(1, priority) + 1} before it is used",
                )
        return delay

    async def _declare(self, queue: str) -> None:
        check_subject("queue", queue)
        with suppress(SpecConflict):  # it is there, and different
            await self._engine.declare(QueueSpec(queue))

    async def schedule(
        self,
        name: str,
        data: Any,
        queue: str = QUEUE,
        *,
        every: float | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        missed: Literal["once", "skip"] = "once",
        priority: int = 0,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Submit a task again and again, in the place of the schedule of that name: the engine keeps it, not this program.

        Args:
            name: Name of the schedule.
            data: The data of each task.
            queue: Name of the queue, which is declared if it does not exist.
            every: Seconds between two tasks, the first of them from now, at least 0.1. Either this or `cron`.
            cron: Minute, hour, day of the month, month and day of the week: ``"0 3 * * *"``.
            zone: The time zone of `cron`, as "Europe/Berlin". A time that the clocks skip in spring is the end of the gap,
                and one that they have twice in autumn is the first of both.
            missed: The fate of times at which the engine's own server was down: they become one task, "once" it is back
                (default), or are left out ("skip").
            priority: As for `submit`.
            ttl: As for `submit`; set it to `every` where a late task is of no use.
            headers: As for `submit`.

        Raises:
            Unsupported: The engine keeps no schedules.
            ConfigError: A name or a time is invalid.
            NotAuthorized: It is not allowed.
        """
        self._engine.capabilities.require("schedule", "schedules")
        if priority or ttl is not None:
            await self._check(queue, priority, 0.0, None, None, True, ttl, None, None)
        envelope = self._payloads.pack(data, None, inherit(headers, None)[0])
        publication = Publication(queue, envelope, priority=priority, ttl=ttl, keep=False)
        times = Times(every, cron, zone, missed)
        try:
            await self._engine.schedule(name, publication, times)
        except NoRoute:
            await self._declare(queue)
            await self._engine.schedule(name, publication, times)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return False if there is none of that name."""
        return await self._engine.unschedule(name)

    async def run(
        self, data: Any, queue: str = QUEUE, *, timeout: float | None = None, **options: Unpack[RunOptions]
    ) -> Any:
        """Submit a task and wait for its result.

        Args:
            data: The data of the task.
            queue: Name of the queue.
            timeout: Seconds for all of it; None is no limit. The task stays in the queue or with its worker after that;
                `deadline` ends it.
            **options: Those of `submit`.

        Raises:
            Exception: As `submit` and `Handle.result` do.

        Cancelling it ends the waiting, not the task.
        """
        if options or timeout is not None:
            clock = self._engine.clock
            began = clock.time()
            handle = await self.submit(data, queue, timeout=timeout, **options)
            return await handle.result(None if timeout is None else max(0.0, timeout - (clock.time() - began)))
        # Most have no options, and need no handle.
        future = OutcomeFuture()
        headers = None if CURRENT.get() is OUTSIDE else inherit(None, None)[0]
        envelope = self._payloads.pack(data, None, headers)
        done = self._engine.publish(envelope, queue=queue, watcher=future)
        try:
            receipt = done if type(done) is Receipt else await done
        except NoRoute:
            return await (await self.submit(data, queue)).result()
        outcome = await future
        if outcome.kind is _RESULT:
            return None if outcome.envelope is None else self._payloads.unpack(outcome.envelope)
        raise error_of(outcome, receipt.id, self._allowed)

    async def submit_many(
        self,
        items: Iterable[Any],
        queue: str = QUEUE,
        *,
        dedup: Iterable[str] | None = None,
        delay: float = 0.0,
        eta: datetime | None = None,
        priority: int = 0,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
        no_reply: bool = False,
        declare: bool = True,
        timeout: float | None = None,
    ) -> list[Handle[Any]]:
        """Submit many tasks, in order, at less cost than one by one.

        Args:
            items: The data of each task.
            queue: As for `submit`.
            dedup: A key for each.
            delay: As for `submit`, for all of them, as what follows.
            eta: As for `submit`.
            priority: As for `submit`.
            ttl: As for `submit`.
            headers: As for `submit`.
            no_reply: As for `submit`.
            declare: As for `submit`.
            timeout: As for `submit`, for all of them together.

        Raises:
            BatchError: The first that failed, with its index; those before it are in the queue, none behind it is.
            Exception: Otherwise as `submit` does; nothing was sent.
        """
        check_headers(headers)
        headers = inherit(headers, None)[0]
        envelopes = [self._payloads.pack(each, None, headers) for each in items]
        keys = None if dedup is None else list(dedup)
        if keys is not None and (isinstance(dedup, str) or len(keys) != len(envelopes)):
            raise ConfigError("dedup", dedup, f"must be a list of {len(envelopes)} keys, one for each task")
        if priority or delay or keys or eta is not None or ttl is not None or timeout is not None:
            key = keys[0] if keys else None
            delay = await self._check(queue, priority, delay, eta, key, declare, ttl, None, timeout)
        watches = None if no_reply else [Watch() for _ in envelopes]

        async def send() -> list[Receipt]:
            try:
                return await self._engine.publish_many(
                    envelopes,
                    queue=queue,
                    watchers=watches,
                    dedup=keys,
                    priority=priority,
                    delay=delay,
                    ttl=ttl,
                    keep=not no_reply,
                    timeout=timeout,
                )
            except BatchError as error:
                if error.completed or not isinstance(error.error, NoRoute):
                    raise
                raise error.error from None

        receipts = await self._routed(queue, declare, send)
        watched: list[Watch | None] = [None] * len(receipts) if watches is None else [*watches]
        return [
            Handle(self._engine, self._payloads, self._allowed, receipt, watch)
            for receipt, watch in zip(receipts, watched, strict=True)
        ]

    async def map(
        self, items: Iterable[Any], queue: str = QUEUE, *, limit: int = MAP_LIMIT, **options: Unpack[MapOptions]
    ) -> AsyncGenerator[Any, None]:
        """Iterate over the results of tasks, in the order of their items.

        Args:
            items: The data of each task; iterated as there is room.
            queue: Name of the queue.
            limit: Maximum number of tasks that are submitted and not yet yielded.
            **options: Those of `submit`.

        Raises:
            ConfigError: `limit` is not above 0.
            UsageError: There is a `dedup` key.
            Exception: As `submit` and `Handle.result` do, in the place of the result.

        Leaving it, also by an error, cancels what was submitted and not yielded. Leave by `contextlib.aclosing` where
        the loop may be left early.
        """
        check_map(limit, options)
        async with aclosing(mapped(partial(self.submit, queue=queue, **options), items, limit)) as results:
            async for each in results:
                yield each

    def chain(self, data: Any, queue: str = QUEUE, **options: Unpack[ChainOptions]) -> TaskChain:
        """Return a task that is not submitted yet, as the first of a chain, or one of a group.

        ``await bus.tasks.chain("a.png", "resize").then("x", "publish").submit()``

        Args:
            data: The data of the task.
            queue: Name of the queue.
            **options: Those of `submit`, beside declare and timeout.
        """
        return TaskChain(Parts(lambda: self, lambda: data, queue, options))

    def group(self, chains: Iterable[Chain[Any]], *, collect: bool = False) -> TaskGroup:
        """Return chains as a group, whose results are wanted together: ``await bus.tasks.group(chains).run()``.

        Args:
            chains: The chains, of `chain`.
            collect: False (default): the first failure decides. True: all outcomes are collected, and the task after the
                group begins however they end.

        Raises:
            ConfigError: There is none, one twice, or something else.
        """
        return TaskGroup(lambda: self, chains, collect)

    async def _submit_chains(self, chains: Sequence[Chain[Any]], timeout: float | None = None) -> list[Handle[Any]]:
        """Submit chains in one step, for `Chain` and `Group`, which have the arguments and the errors.

        Returns:
            The handles of their last tasks.
        """
        require("timeout", timeout, optional(duration))
        self._engine.capabilities.require(
            "successors",
            "tasks that come after others",
            "connect to redpoll://, or submit the next task in the handler",
        )
        order = in_order(chains)
        for each in order:
            other = each.tasks()
            if other is not self:
                raise UsageError(f"tasks of {self!r} and of {other!r} are in one chain or group", "use one bus for all")
        if len(chains) > 1 and any(each.options.get("dedup") is not None for each in order):
            raise UsageError("a group has no key", "give one to the task after it")
        places = {parts: place for place, parts in enumerate(order)}
        steps = [
            Step(await self._planned(each), tuple(places[before._parts] for before in each.before), each.collect)
            for each in order
        ]
        wanted = [places[each._parts] for each in chains]
        watches: list[Watch | None] = [None] * len(steps)
        for place in wanted:
            watches[place] = Watch() if steps[place].publication.keep else None
        try:
            receipts = await self._engine.publish_steps(steps, watchers=watches, timeout=timeout)
        except NoRoute:
            for queue in dict.fromkeys(each.queue for each in order):
                await self._declare(queue)
            receipts = await self._engine.publish_steps(steps, watchers=watches, timeout=timeout)
        found = receipts if receipts[0].duplicate else [receipts[place] for place in wanted]
        handles: list[Handle[Any]] = []
        for chain, place, receipt in zip(chains, wanted, found, strict=True):
            handle: Handle[Any] = Handle(self._engine, self._payloads, self._allowed, receipt, watches[place])
            read = chain._parts.read
            handles.append(handle if read is None else handle.read_by(read))
        return handles

    async def _run_chains(
        self, chains: Sequence[Chain[Any]], timeout: float | None = None, collect: bool = False
    ) -> list[Any]:
        """Submit chains in one step, and return the results of their last tasks, for `Chain` and `Group`."""
        clock = self._engine.clock
        began = clock.time()
        handles = await self._submit_chains(chains, timeout)
        left = None if timeout is None else max(0.0, timeout - (clock.time() - began))
        waiting = [asyncio.ensure_future(each.result(left)) for each in handles]
        try:
            results: list[Any] = await asyncio.gather(*waiting, return_exceptions=collect)
        finally:
            for each in waiting:
                each.cancel()
        for handle, result in zip(handles, results, strict=True):
            if isinstance(result, TimeoutError) and not handle.over:
                raise result
        return results

    async def _planned(self, parts: Parts) -> Publication:
        """Return the task of a part of a chain, with its options checked."""
        options: dict[str, Any] = dict(parts.options)
        headers, eta, no_reply = (options.pop(each, None) for each in ("headers", "eta", "no_reply"))
        check_headers(headers)
        priority, delay, dedup = options.pop("priority", 0), options.pop("delay", 0.0), options.get("dedup")
        times = options.get("ttl"), options.get("deadline"), None
        delay = await self._check(parts.queue, priority, delay, eta, dedup, True, *times)
        envelope = self._payloads.pack(parts.data(), None, inherit(headers, None)[0])
        return Publication(parts.queue, envelope, priority=priority, delay=delay, keep=not no_reply, **options)

    def handle(self, id: str, queue: str = QUEUE) -> Handle[Any]:  # noqa: A002, ARG002  # the public names
        """Return a handle for a task that was submitted before, perhaps in another process.

        Args:
            id: Its id.
            queue: Name of its queue, for engines that need it.

        The engine is asked when the handle is used.

        Raises:
            ConfigError: The id is no text.
        """
        if not isinstance(id, str):
            raise ConfigError("id", id, f"must be text, not {type(id).__name__}")
        watch = self._known.get(id)
        if watch is None or watch.over:
            # Not one for each handle: a program may look for a task of days again and again.
            watch = self._known[id] = KnownWatch()
        return Handle(self._engine, self._payloads, self._allowed, id, watch)

    # -- working

    def worker(
        self,
        handler: Callable[[Task], Any],
        queue: str = QUEUE,
        *,
        concurrency: int | None = None,
        retry: Retry | None = None,
        time_limit: float | None = None,
        pool: Literal["thread", "process"] | None = None,
        cancel_lost: bool = True,
        drain: float | None = 5.0,
        prefetch: bool = True,
        declare: bool = True,
    ) -> Worker:
        """Work on the tasks of a queue, while the block of the returned context manager runs.

        The handler is called with a `Task`. Its return value is the result (a future is waited for); its exception is the
        outcome, unless `retry` covers it. It may raise `Requeue` (give it back), `TaskRejected` (offer it to others) and
        `DeadLettered` (give it up). A worker whose queue is deleted continues when that is declared again.

        Args:
            handler: A coroutine function, which runs on the loop; or a plain function, which runs in a thread or a process.
            queue: Name of the queue.
            concurrency: Maximum number of running handlers. None: 8, and with processes one for each CPU.
            retry: The policy for exceptions. None (default): each exception is final.
            time_limit: Seconds for the handler, from where it begins. A coroutine is cancelled and a process killed; a thread
                cannot be stopped: the outcome is recorded, and its slot is used until it returns. Where `retry` covers
                `TimeLimit` the task goes back when the thread has returned, not earlier.
            pool: The pool of a plain function. None: threads. A process is for computing; the function, its data and
                results have to be picklable, and a process that dies, or twice takes more than 60 s to start, is a failed
                attempt of its own task alone.
            cancel_lost: Stop a handler when its task was given to another worker.
            drain: Seconds that handlers have to finish when the block is left; then they are stopped, and their tasks go
                back. None: no limit. A block that is left by an exception does not wait.
            prefetch: Let a hub send tasks before they have a slot, while handlers are short and no worker of the queue has a
                free slot: about 5 ms of work, at most 64 tasks. Where none of them is begun for 25 ms they go back, and that
                is no attempt. False: a task is sent when it has a slot.
            declare: Declare the queue if it does not exist.

        Raises:
            ConfigError: A value cannot be, or the handler is no function of one argument, or cannot be pickled.
        """
        return Worker(
            self._engine,
            self._payloads,
            handler,
            self._consume if declare else self._engine.consume,
            queue,
            concurrency=concurrency,
            retry=retry,
            time_limit=time_limit,
            pool=pool,
            cancel_lost=cancel_lost,
            drain=drain,
            prefetch=prefetch,
            running=self._workers,
        )

    def planned_worker(
        self,
        plan: Callable[[Delivery], Plan],
        queue: str,
        *,
        concurrency: int | None,
        time_limit: float | None,
    ) -> Worker:
        """Work on tasks by more than one function: for `redpoll.App`.

        Args:
            plan: Gives the way to work on a task, whose handler is a coroutine function.
            queue: As for `worker`, as what follows.
            concurrency: As for `worker`.
            time_limit: The longest that a plan has.

        Raises:
            ConfigError: A value cannot be.
        """

        async def unplanned(task: Task) -> None:
            """Stand for the handlers of the plans."""

        return Worker(
            self._engine,
            self._payloads,
            unplanned,
            self._consume,
            queue,
            concurrency=concurrency,
            retry=None,
            time_limit=time_limit,
            pool=None,
            cancel_lost=True,
            drain=None,
            prefetch=True,
            running=self._workers,
            plan=plan,
        )

    async def _consume(self, queue: str, **options: Any) -> Any:
        return await self._routed(queue, True, partial(self._engine.consume, queue, **options))

    def next(self, queue: str = QUEUE, timeout: float | None = None, *, declare: bool = True) -> _Next:
        """Take one task: ``async with bus.tasks.next("night") as task``, or ``task = await bus.tasks.next("night")``.

        Args:
            queue: Name of the queue.
            timeout: Seconds to wait for one; 0 does not wait; None (default) is no limit.
            declare: Declare the queue if it does not exist.

        Raises:
            ConfigError: The timeout cannot be.
            QueueEmpty: None came in time.
            NoRoute: The queue does not exist, and was not to be declared.
            SpecConflict: A consumer has the queue exclusively.
        """
        require("timeout", timeout, optional(duration))
        return _Next(self._claim(queue, timeout, declare))

    async def _claim(self, queue: str, timeout: float | None, declare: bool) -> Claim:
        delivery = await self._routed(queue, declare, partial(self._engine.take, queue, timeout))
        return Claim(delivery, self._payloads)

    async def each(self, queue: str = QUEUE) -> AsyncGenerator[Claim, None]:
        """Iterate over the tasks that are in a queue now, until it is empty.

        Those that are left without an outcome go back when the iteration ends, not earlier: it would never end.

        Raises:
            NoRoute: The queue does not exist.
        """
        skipped: list[Claim] = []
        try:
            while True:
                try:
                    claim = await self._claim(queue, 0.0, False)
                except QueueEmpty:
                    return
                # Before it is handed out: the iteration may be left there.
                skipped.append(claim)
                yield claim
                if claim.done:
                    skipped.pop()
        finally:
            for each in reversed(skipped):
                each.requeue()


def check_map(limit: int, options: Mapping[str, Any]) -> None:
    """Check the arguments of `Tasks.map`; the errors are its errors."""
    require("limit", limit, _limit)
    if options.get("dedup") is not None:
        raise UsageError("one dedup key would make one task of all items", "submit_many has a key for each")


async def mapped(
    submit: Callable[[Any], Awaitable[Handle[T]]], items: Iterable[Any], limit: int
) -> AsyncGenerator[T, None]:
    """Iterate over the results of the tasks that a function submits for items: see `Tasks.map`."""
    source = iter(items)
    waiting: deque[Handle[T]] = deque()
    try:
        while True:
            for item in source:
                waiting.append(await submit(item))
                if len(waiting) >= limit:
                    break
            if not waiting:
                return
            yield await waiting[0].result()
            waiting.popleft()
    finally:
        for handle in waiting:
            if not handle.duplicate:
                with suppress(RedpollError):
                    await handle.cancel()


class _Next:
    """The result of `Tasks.next`: it can be awaited, or entered."""

    def __init__(self, taking: Coroutine[Any, Any, Claim]) -> None:
        self._taking = taking
        self._claim: Claim | None = None

    def __await__(self) -> Generator[Any, None, Claim]:
        """Wait for a task."""
        return self._taking.__await__()

    async def __aenter__(self) -> Claim:
        self._claim = claim = await self._taking
        return claim

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        claim, self._claim = self._claim, None
        return claim is not None and await claim.__aexit__(kind, error, trace)
