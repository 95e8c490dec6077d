"""A worker: receives tasks from a queue as it has slots, runs the handler, and sends the outcomes to the engine.

User code runs in tasks of its own, in threads or in processes, never on the way of an acknowledgement. Each `_Job` ends
once, in `Worker.end`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from redpoll.bus.awaitables import of_thread, resolve, unexpected
from redpoll.bus.context import CURRENT, NO_HEADERS, Context
from redpoll.bus.engine import Delivery, Engine, Timer
from redpoll.bus.envelope import Envelope, Payloads
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.service import ProgramEnds, spawner, submitted
from redpoll.bus.tasks.ending import NOTHING, Ending, Way, failed, returned, settle
from redpoll.bus.tasks.handle import NESTED
from redpoll.bus.tasks.processes import Errand, Processes
from redpoll.bus.tasks.retry import Retry, check_result, check_retry
from redpoll.bus.tasks.task import Task
from redpoll.checks import (
    call_problem,
    check_function,
    duration,
    flag,
    integer,
    is_async,
    one_of,
    optional,
    require,
    seconds,
)
from redpoll.errors import ConfigError, PayloadTooLarge, TimeLimit, Unsupported, UsageError

__all__ = ["Plan", "Voice", "Worker"]

Pool = Literal["thread", "process"]
Stop = Literal["cancelled", "lost", "time limit", "closing"]

_log = logging.getLogger("redpoll.bus.tasks")

_BACK: Final = Ending(Way.REQUEUE)
_new: Final = tuple.__new__
#: Maximum pending progress of a handler in a thread; the oldest is dropped beyond that.
_PROGRESS: Final = 1_000
#: Results of these types are no futures.
_VALUES: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})
_CHECKS: Final = {
    "concurrency": integer(1, 100_000),
    "time_limit": optional(seconds),
    "pool": optional(one_of("thread", "process")),
    "drain": optional(duration),
    "prefetch": flag,
}


class Plan(NamedTuple):
    """The way to work on one task.

    Attributes:
        handler: Called with the `Task`.
        retry: The policy for its exceptions; None is none.
        time_limit: Seconds for it; None is no limit.
        can_stop: False where a coroutine function waits for a thread: it is not cancelled, and its slot is used until the
            thread returns.
    """

    handler: Callable[[Task], Any]
    retry: Retry | None = None
    time_limit: float | None = None
    can_stop: bool = True


class _Job:
    """A task in a slot, and the listener of its delivery.

    Attributes:
        delivery: The task.
        why: The reason for which its handler was stopped, or None.
        reason: The same in words.
        work: The handle that stops it: the asyncio task, the future of a thread, the errand to a process.
        timer: For the time limit.
        settled: True if its outcome was recorded, and its thread still runs.
        plan: The way to work on it.
    """

    __slots__ = ("_worker", "begun", "delivery", "plan", "reason", "settled", "timer", "why", "work")

    def __init__(self, worker: Worker, delivery: Delivery) -> None:
        self._worker = worker
        self.delivery = delivery
        self.why: Stop | None = None
        self.reason = ""
        self.work: Any = None
        self.begun = False
        self.timer: Timer | None = None
        self.settled = False
        plan = worker.plan
        self.plan = plan if isinstance(plan, Plan) else plan(delivery)

    def lost(self) -> None:
        """Stop the handler: another worker may begin the task."""
        if self._worker.cancel_lost:
            self._worker.stop(self, "lost", "lost")

    def cancelled(self, reason: str) -> None:
        """Stop the handler: the task is not wanted any more."""
        self._worker.stop(self, "cancelled", reason)

    def told(self, envelope: Envelope) -> None:
        """Ignore it: tasks have no messages from their publisher."""


class Worker:
    """Tasks of one queue, done by one handler. Made by `Tasks.worker`, and used as an async context manager.

    Attributes:
        queue: Name of the queue.
        concurrency: Its slots.
        cancel_lost: Stop a handler when its task is lost.
        plan: The way to work on all tasks, or a function that gives the way to work on one.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        handler: Callable[[Task], Any],
        consume: Callable[..., Any],
        queue: str,
        *,
        concurrency: int | None,
        retry: Retry | None,
        time_limit: float | None,
        pool: Pool | None,
        cancel_lost: bool,
        drain: float | None,
        prefetch: bool,
        running: set[Worker],
        plan: Callable[[Delivery], Plan] | None = None,
    ) -> None:
        if concurrency is None:
            concurrency = (os.cpu_count() or 1) if pool == "process" else 8
        for field, value in zip(_CHECKS, (concurrency, time_limit, pool, drain, prefetch), strict=True):
            require(field, value, _CHECKS[field])
        check_function(
            "handler", handler, "a handler is a plain function or a coroutine function of one argument, the task"
        )
        check_result("handler", handler)
        problem = call_problem(handler)
        if problem is not None:
            raise ConfigError("handler", handler, f"cannot be called with a task: {problem}")
        check_retry(retry)
        self.engine = engine
        self.payloads = payloads
        self.handler = handler
        self.queue = queue
        self.concurrency = concurrency
        self.retry = retry
        self.cancel_lost = cancel_lost
        self._consume = consume
        self.plan = Plan(handler, retry, time_limit) if plan is None else plan
        self._time_limit = time_limit
        self._drain = drain
        self._prefetch = prefetch
        self._running = running
        self._jobs: set[_Job] = set()
        self._consumer: LastingConsumer | None = None
        # Of those that wait until no handler runs.
        self._waiters: set[asyncio.Future[None]] = set()
        self._stuck = 0
        self._spawn: Callable[..., asyncio.Task[None]]
        self._context: contextvars.Context
        is_coroutine = is_async(handler)
        if is_coroutine and pool is not None:
            raise ConfigError("pool", pool, "is for plain functions", "a coroutine function runs on the loop")
        # Coroutines run on the loop, each in an asyncio task of its own.
        self._threads = None if is_coroutine else _Threads(self, pool == "process")

    def __repr__(self) -> str:
        return f"<Worker of {self.queue!r}, {len(self._jobs)} of {self.concurrency} slots used>"

    @property
    def running(self) -> int:
        """The number of running handlers."""
        return len(self._jobs)

    @property
    def active(self) -> bool:
        """True if it receives tasks: not while the engine reconnects, while its queue is deleted, or when closed."""
        return self._consumer is not None and self._consumer.active

    async def __aenter__(self) -> Self:
        """Begin to receive tasks.

        Raises:
            NoRoute: The queue does not exist, and was not to be declared.
            NotAuthorized: It is not allowed.
            UsageError: It was used before.
            Unsupported: The time limit is over `Capabilities.hold`.
        """
        if self._consumer is not None:
            raise UsageError("this worker was started before", "make another one")
        capabilities, limit = self.engine.capabilities, self._time_limit
        if limit is not None and capabilities.hold is not None and limit > capabilities.hold:
            raise Unsupported(
                capabilities.engine,
                f"a time limit of {limit:g} s: it takes tasks away after {capabilities.hold:g} s",
                "pass consumer_timeout= to connect if the operator of the server has changed that",
            )
        self._spawn = spawner(asyncio.get_running_loop())
        self._context = contextvars.copy_context()
        options: dict[str, Any] = {"credit": self.concurrency, "sink": self._take, "prefetch": self._prefetch}
        # A worker does not declare a queue again that was deleted.
        consumer = LastingConsumer(
            self.engine.clock,
            self.queue,
            partial(self._consume, self.queue, **options),
            partial(self.engine.consume, self.queue, **options),
        )
        self._consumer = await consumer.open()
        self._running.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; a block that ended with an exception does not wait for handlers."""
        await self.close(self._drain if kind is None else 0.0)

    async def close(self, drain: float | None = 0.0, *, threads: bool = True) -> None:
        """Receive no more tasks, wait for handlers, stop the rest and give their tasks back without blame.

        Args:
            drain: Seconds for handlers to finish; None is no limit.
            threads: Wait for handlers in threads beyond that, since they cannot be stopped. The closing bus does not: they
                continue, and their outcomes are lost.

        Cancelled, it stops the handlers at once and waits for nothing.
        """
        if self._consumer is None:
            return
        self._running.discard(self)
        ending = None
        try:
            await self._consumer.close()
            if self._jobs and drain != 0:
                await self._wait(drain)
            self._stop_all()
            if threads or self._can_stop():
                await self._wait(None)
            else:
                stopped = [job for job in self._jobs if job.plan.can_stop]
                tasks = [job.work for job in stopped if isinstance(job.work, asyncio.Task)]
                await asyncio.gather(*tasks, return_exceptions=True)
        except BaseException:
            self._stop_all()
            raise
        finally:
            ending = self.let_go()
        if ending is not None:
            await asyncio.shield(asyncio.wrap_future(ending))

    def _can_stop(self) -> bool:
        """Return True if no handler is in a thread."""
        apart = self._threads is not None and not self._threads.can_stop
        return not apart and all(job.plan.can_stop for job in self._jobs)

    def let_go(self) -> concurrent.futures.Future[None] | None:
        """End idle threads and processes; for its owner, in any thread.

        Returns:
            A future that is done when the processes have ended; None where there are none.
        """
        return None if self._threads is None else self._threads.close()

    async def _wait(self, seconds: float | None) -> None:
        """Wait until no handler runs, or the time is over."""
        for job in tuple(self._jobs):
            if isinstance(job.work, asyncio.Task) and job.work.done():
                # Somebody cancelled it before its first step, as the end of a loop does.
                self.end(job, _BACK)
        if not self._jobs:
            return
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(idle)
        clock = self.engine.clock
        timer = None if seconds is None else clock.call_at(clock.time() + seconds, lambda: resolve(idle))
        try:
            await idle
        finally:
            self._waiters.discard(idle)
            if timer is not None:
                timer.cancel()

    def _stop_all(self) -> None:
        for job in tuple(self._jobs):
            self.stop(job, "closing", "its worker was closed")

    # -- a task

    def _take(self, delivery: Delivery) -> None:
        job = _Job(self, delivery)
        self._jobs.add(job)
        delivery.listen(job)
        if job.why is not None or (self._threads is not None and not delivery.begin()):
            self.end(job, _BACK)
            return
        if job.plan.time_limit is not None and (self._threads is None or not self._threads.can_stop):
            self.limit(job)
        if self._threads is None:
            # Not the context of the caller of the engine, which may be another handler.
            job.work = self._spawn(self.run(job), context=self._context.copy())
        else:
            self._threads.begin(job)

    def limit(self, job: _Job) -> None:
        """Let its time limit run, as its handler begins: in a process that may have to be started before."""
        limit = job.plan.time_limit
        if limit is not None and job in self._jobs:
            clock = self.engine.clock
            job.timer = clock.call_at(clock.time() + limit, lambda: self._late(job))

    def stop(self, job: _Job, why: Stop, reason: str) -> None:
        """Stop a handler if possible; the first reason counts."""
        if job.why is not None or job not in self._jobs:
            return
        job.why, job.reason = why, reason
        if isinstance(job.work, asyncio.Task):
            # Before its first step there is nothing that would notice; it looks by itself.
            if job.begun and job.plan.can_stop:
                job.work.cancel()
        elif self._threads is not None and job.work is not None:
            self._threads.stop(job)

    def _late(self, job: _Job) -> None:
        if job.why is not None:
            return
        self.stop(job, "time limit", f"it took longer than {job.plan.time_limit:g} s")
        in_thread = isinstance(job.work, concurrent.futures.Future) or not job.plan.can_stop
        if in_thread and job in self._jobs and not self._limited(job).again:
            # The outcome is there already, but the thread continues, and so its slot is not free.
            self._hold(1)
            job.settled = True
            settle(job.delivery, self._limited(job))

    def _limited(self, job: _Job) -> Ending:
        again = job.plan.retry is not None and job.plan.retry.covers(TimeLimit())
        return Ending(Way.ERROR, None, job.reason, again=again)

    def _hold(self, slots: int) -> None:
        self._stuck += slots
        if self._consumer is not None:
            self._consumer.set_credit(max(0, self.concurrency - self._stuck))

    def end(self, job: _Job, ending: Ending) -> None:
        """Free a slot, and carry out the ending of its task."""
        self._jobs.discard(job)
        if job.timer is not None:
            job.timer.cancel()
        why = job.why
        if why is None:
            settle(job.delivery, ending, job.plan.retry)
        elif job.settled:
            self._hold(-1)
        elif why == "time limit":
            settle(job.delivery, self._limited(job), job.plan.retry, blame=True)
        elif why != "lost":
            if ending.way is not Way.RESULT:
                # Its exception was most likely caused by the stop.
                ending = Ending(Way.CANCELLED if why == "cancelled" else Way.REQUEUE, None, job.reason)
            settle(job.delivery, ending)
        if not self._jobs:
            for waiter in self._waiters:
                resolve(waiter)

    async def run(self, job: _Job, value: Any = None) -> None:
        """Run a coroutine handler, or wait for the future that another one returned."""
        ending = _BACK
        try:
            if job.why is not None or (value is None and not job.delivery.begin()):
                _let_go(value)
            else:
                job.begun = True
                if job.work is None:
                    # Its first step is done at once: it may be stopped in that.
                    job.work = asyncio.current_task()
                delivery = job.delivery
                CURRENT.set(_new(Context, (delivery.envelope.headers or NO_HEADERS, delivery)))
                if value is None:
                    value = await job.plan.handler(Task(delivery, self.payloads))
                if type(value) not in _VALUES:
                    value = await self._follow(job, value)
                ending = NOTHING if value is None else returned(value, self.payloads)
        except (KeyboardInterrupt, SystemExit):
            raise
        except GeneratorExit as error:
            ending = failed(unexpected(error, job.work), job.plan.retry)
        except BaseException as error:  # noqa: BLE001  # any exception of a handler ends its task
            ending = failed(error, job.plan.retry)
            task = asyncio.current_task()
            if ending.way is Way.CANCELLED and job.why is None and task is not None and task.cancelling():
                # Not the handler's doing: the loop is being ended.
                ending = _BACK
        self.end(job, ending)

    async def _follow(self, job: _Job, value: Any) -> Any:
        """Wait for a future, and for a future that is its result."""
        depth = 0
        while _is_future(value):
            depth += 1
            job.delivery.progress(Envelope("", b"", {NESTED: depth}))
            value = await (of_thread(value) if isinstance(value, concurrent.futures.Future) else value)
        return value


class Voice:
    """A task's delivery for a handler in a thread or a process: its progress is sent on the loop."""

    __slots__ = ("_delivery", "_due", "_loop", "_said")

    def __init__(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        self._delivery = delivery
        self._loop = loop
        self._said: deque[Envelope] = deque(maxlen=_PROGRESS)
        self._due = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the watchers, soon; while the loop is blocked, the oldest is dropped beyond a limit."""
        self._said.append(envelope)
        if not self._due:
            self._due = True
            with suppress(RuntimeError):  # the loop is gone, and the engine with it
                self._loop.call_soon_threadsafe(self._say)
        return not self._delivery.lost

    def _say(self) -> None:
        # Before anything is taken: progress that is appended from now on is taken here, or in the next turn.
        self._due = False
        while self._said:
            try:
                self._delivery.progress(self._said.popleft())
            except PayloadTooLarge as error:
                _log.warning("progress of task %s was not sent: %s", self._delivery.id, error)


class _Threads:
    """Handlers in threads, or in processes with a waiting thread each.

    Args:
        worker: The worker, whose `end` gets each ending.
        in_processes: Run them in processes.

    Attributes:
        can_stop: True if a running handler can be stopped.

    Raises:
        ConfigError: The handler cannot be sent to a process.
    """

    def __init__(self, worker: Worker, in_processes: bool) -> None:
        self._worker = worker
        self._processes = Processes(worker.handler, worker.payloads, worker.retry) if in_processes else None
        self.can_stop = in_processes
        self._executor: ThreadPoolExecutor | None = None
        self._context = contextvars.copy_context()

    def begin(self, job: _Job) -> None:
        """Begin a task."""
        loop = asyncio.get_running_loop()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._worker.concurrency, f"redpoll tasks {self._worker.queue}")
        try:
            if self._processes is not None:
                job.work = Errand(job.delivery)
                submitted(self._executor, partial(self._send, job, loop, self._processes))
            else:
                job.work = submitted(self._executor, partial(self._call, job, loop))
        except ProgramEnds as error:
            self._worker.end(job, Ending(Way.REQUEUE, None, str(error), 1.0))

    def stop(self, job: _Job) -> None:
        """Stop a handler in a process; or in a thread, if it has not begun."""
        if self._processes is not None:
            self._processes.stop(job.work)
        elif job.work.cancel():
            self._worker.end(job, _BACK)

    def close(self) -> concurrent.futures.Future[None] | None:
        """Close threads and processes; no handler runs any more, or its outcome is lost.

        Returns:
            A future that is done when the processes have ended.
        """
        executor, self._executor = self._executor, None
        if executor is None:
            return None
        # Not on the loop: a child takes its time to end.
        ending = None if self._processes is None else executor.submit(self._processes.close)
        executor.shutdown(wait=False)
        return ending

    # -- in the threads

    def _call(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        worker = self._worker
        voice: Any = Voice(job.delivery, loop)
        context = self._context.copy()
        context.run(CURRENT.set, Context(voice.envelope.headers or NO_HEADERS, voice))
        try:
            value = context.run(worker.handler, Task(voice, worker.payloads))
            if type(value) not in _VALUES and _is_future(value):
                self._post(loop, self._follow, job, value)
                return
            ending = returned(value, worker.payloads)
        except BaseException as error:  # noqa: BLE001  # any exception of a handler ends its task
            ending = failed(error, worker.retry)
        self._post(loop, worker.end, job, ending)

    def _send(self, job: _Job, loop: asyncio.AbstractEventLoop, processes: Processes) -> None:
        try:
            begun = partial(self._post, loop, self._worker.limit, job)
            ending = processes.work(job.work, Voice(job.delivery, loop).progress, begun)
        except Exception as error:  # noqa: BLE001  # no process can be started
            ending = Ending(Way.REQUEUE, None, f"no process could be started: {error}", 1.0)
        self._post(loop, self._worker.end, job, ending)

    def _post(self, loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is gone, and the engine with it
            loop.call_soon_threadsafe(function, *arguments)

    # -- on the loop

    def _follow(self, job: _Job, value: Any) -> None:
        if job.why is not None:
            _let_go(value)
            self._worker.end(job, _BACK)
        else:
            job.work = asyncio.get_running_loop().create_task(
                self._worker.run(job, value), context=self._context.copy()
            )


def _is_future(value: Any) -> bool:
    return isinstance(value, concurrent.futures.Future) or inspect.isawaitable(value)


def _let_go(value: Any) -> None:
    """Close or cancel an abandoned awaitable, if it can be."""
    stop = getattr(value, "close" if inspect.iscoroutine(value) else "cancel", None)
    if callable(stop):
        try:
            stop()
        except Exception:  # noqa: BLE001  # it may be anybody's
            _log.exception("an awaitable that a handler returned could not be cancelled")
