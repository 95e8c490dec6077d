"""Handles: the submitter's view of a task, with its progress, its outcome and its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, cast

from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.feed import Feed, forked_error
from redpoll.bus.records import Receipt, TaskState
from redpoll.checks import check_function, duration, optional, require
from redpoll.errors import (
    BusError,
    DeadLettered,
    RedpollError,
    RemoteError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TimeLimit,
)
from redpoll.platforms import forks

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ResultT = TypeVar("ResultT", default=Any)
else:
    from typing import TypeVar

    ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")

__all__ = ["NESTED", "Handle", "KnownWatch", "Watch", "error_of"]

_log = logging.getLogger("redpoll.bus.tasks")

NESTED: Final = "nested"
"""In `Envelope.meta` of progress: the handler returned a future, which the worker waits for; its value is how many."""

#: Progress that an iterator of `Handle.watch` did not take yet; the oldest is dropped beyond that.
_BUFFER: Final = 1_000

_RESULT: Final = OutcomeKind.RESULT
_ERRORS: Final[dict[OutcomeKind, type[TaskError]]] = {
    OutcomeKind.CANCELLED: TaskCancelled,
    OutcomeKind.DEAD: DeadLettered,
    OutcomeKind.EXPIRED: TaskExpired,
    OutcomeKind.TIME_LIMIT: TimeLimit,
    OutcomeKind.LOST: TaskError,
}


def error_of(outcome: Outcome, task: str, allowed: AllowedExceptions) -> Exception:
    """Return the error of an outcome other than a result.

    Args:
        outcome: The outcome.
        task: The task's id.
        allowed: The exceptions that are rebuilt with their own types.
    """
    kind, envelope, detail = outcome
    if kind is not OutcomeKind.ERROR:
        failure = _ERRORS[kind](task, detail)
        failure.outcome = True
        return failure
    if envelope is not None:
        return allowed.rebuild(envelope)
    # It was too large to be sent.
    name, _, text = detail.partition(": ")
    return RemoteError(name or "unknown", text)


class Watch:
    """A watcher of one task, which keeps its state.

    Attributes:
        ending: The outcome, once there is one.
        error: The reason for which there will be none.
        last: The latest progress.
        nested: The number of futures that the handler has returned, one within another.
        over: True once the outcome, or its absence, is known.
    """

    __slots__ = ("_changed", "_fork", "_listeners", "ending", "error", "last", "nested", "over")

    def __init__(self) -> None:
        self.ending: Outcome | None = None
        self.error: RedpollError | None = None
        self.last: Envelope | None = None
        self.nested = 0
        self.over = False
        self._fork = forks.number
        self._changed: asyncio.Event | None = None
        self._listeners: list[Callable[[Envelope | None], object]] | None = None

    # -- for the engine

    def progress(self, envelope: Envelope) -> None:
        """Take progress."""
        if envelope.meta and NESTED in envelope.meta:
            self.nested += 1
            self.wake()
            return
        self.last = envelope
        for listener in tuple(self._listeners or ()):
            listener(envelope)

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""
        self.ending = outcome
        self.over = True
        if self._changed is not None:
            self.wake()
        if self._listeners is not None:
            self._end()

    def gone(self, error: RedpollError) -> None:
        """Take the error for which there is none."""
        self.error = error
        self.over = True
        self.wake()
        self._end()

    def _end(self) -> None:
        listeners, self._listeners = self._listeners, None
        for listener in listeners or ():
            listener(None)

    # -- for handles

    async def change(self) -> None:
        """Wait for the next change.

        Raises:
            UsageError: This is a forked child, which learns of none.
        """
        if self._fork != forks.number:
            raise forked_error()
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def wake(self) -> None:
        """End all waits for a change."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def listen(self, listener: Callable[[Envelope | None], object]) -> Callable[[], None]:
        """Call a plain function with each progress, and with None at the end; return a function that stops that."""
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

        def stop() -> None:
            with suppress(ValueError):
                (self._listeners or []).remove(listener)

        return stop


class KnownWatch(Watch):
    """The watcher of a task that was submitted before, for all handles that are made for its id: it is asked for once."""

    __slots__ = ("__weakref__", "_opening", "watching")

    def __init__(self) -> None:
        super().__init__()
        self.watching = False
        self._opening: asyncio.Future[None] | None = None

    async def open(self, engine: Engine, task: str) -> None:
        """Begin to watch, unless it does."""
        if self.watching:
            return
        if self._opening is None:
            # One of those that wait for it may be cancelled, and the others continue.
            self._opening = asyncio.ensure_future(engine.watch(task, self))
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Future[None]) -> None:
        self._opening = None
        self.watching = not opening.cancelled() and opening.exception() is None


class Handle(Generic[ResultT]):
    """A task that was submitted. Made by `Tasks.submit`, or by `Tasks.handle` for an id. Its type is that of the result.

    Dropping it changes nothing: the task continues.
    """

    __slots__ = (
        "__weakref__",
        "_allowed",
        "_engine",
        "_level",
        "_payloads",
        "_read",
        "_receipt",
        "_watch",
        "_watching",
    )

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        allowed: AllowedExceptions,
        receipt: Receipt | str,
        watch: Watch | None,
        level: int = 0,
    ) -> None:
        self._engine = engine
        self._payloads = payloads
        self._allowed = allowed
        self._receipt = receipt
        self._watch = KnownWatch() if watch is None else watch
        # Otherwise the engine is asked when somebody wants to know.
        self._watching = not isinstance(self._watch, KnownWatch)
        self._level = level
        self._read: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    @property
    def id(self) -> str:
        """The task's id: `Tasks.handle` finds it again by that, in another process too where outcomes are stored."""
        return self._receipt if isinstance(self._receipt, str) else self._receipt.id

    @property
    def duplicate(self) -> bool:
        """True if a task with the same `dedup` key was submitted before; this is a handle of that one."""
        return not isinstance(self._receipt, str) and self._receipt.duplicate

    @property
    def over(self) -> bool:
        """True once its outcome, or its absence, reached this handle; one for an id asks when a result is waited for."""
        return self._watch.over

    @property
    def progress(self) -> Any:
        """The latest progress that reached this handle; None before.

        Raises:
            BadPayload: It cannot be read here.
        """
        last = self._watch.last
        return None if last is None else self._payloads.unpack(last)

    async def _watched(self) -> Watch:
        """Return the watch; a handle that was made for an id begins to watch now."""
        watch = self._watch
        if isinstance(watch, KnownWatch):
            await watch.open(self._engine, self.id)
            self._watching = True
        return watch

    def read_by(self, read: Callable[[Any], OtherT]) -> Handle[OtherT]:
        """Convert the result by a function, which may raise `BadPayload`; return this handle, typed by what it returns."""
        self._read = read
        return cast("Handle[OtherT]", self)

    async def result(self, timeout: float | None = None, *, flat: bool = True) -> ResultT:
        """Wait for the result.

        Args:
            timeout: Seconds to wait; None is no limit.
            flat: The meaning of a future that the handler returned. True (default): its result is the task's. False: as soon
                as it is known, a handle is returned in the place of the result, and that handle's result is the future's.

        Raises:
            ConfigError: The timeout cannot be.
            RemoteError: The handler raised; or what it raised itself, where `connect` allows its class.
            TaskCancelled: It was cancelled.
            DeadLettered: It became a dead letter.
            TaskExpired: Its time ended before it was begun, or its deadline passed.
            TimeLimit: Its handler took too long.
            TimeoutError: There is no outcome yet; it can be waited for again.
            ResultExpired: It ended, and the outcome is not kept.
            UnknownTask: There was none with this id.
            Unsupported: The engine has live results alone, and this handle was made for an id.
            BadPayload: The result cannot be read here.
            Closed: The bus was closed.

        Cancelling it ends the waiting and nothing else. Several may wait, one after the other as well.
        """
        require("timeout", timeout, optional(duration))
        watch = self._watch if self._watching else await self._watched()
        clock = self._engine.clock
        late = timeout == 0

        def expire() -> None:
            nonlocal late
            late = True
            watch.wake()

        timer = None if timeout is None or watch.over else clock.call_at(clock.time() + timeout, expire)
        try:
            while not watch.over and (flat or watch.nested <= self._level):
                if late:
                    hint = "it continues: wait again, or check that a worker has its queue"
                    raise TimeoutError(f"task {self.id} has no outcome after {round(timeout or 0, 3):g} s ({hint})")
                await watch.change()
        finally:
            if timer is not None:
                timer.cancel()
        if not flat and watch.nested > self._level:
            inner: Handle[Any] = Handle(
                self._engine, self._payloads, self._allowed, self._receipt, watch, self._level + 1
            )
            return cast("ResultT", inner if self._read is None else inner.read_by(self._read))
        ending = watch.ending
        if ending is None:
            raise watch.error or BusError("no outcome")
        if ending.kind is _RESULT:
            value = None if ending.envelope is None else self._payloads.unpack(ending.envelope)
            return cast("ResultT", value if self._read is None else self._read(value))
        raise error_of(ending, self.id, self._allowed)

    async def watch(self) -> AsyncIterator[Any]:
        """Iterate over progress, from the latest that is known on, until the task ends; however it ends.

        Raises:
            ResultExpired, UnknownTask, Unsupported, Closed: As for `result`.
            BadPayload: It cannot be read here.

        An iterator that is slow loses the oldest beyond 1,000.
        """
        watch = await self._watched()
        feed: Feed[Envelope] = Feed(_BUFFER)
        if watch.last is not None:
            feed.push(watch.last)
        stop = watch.listen(lambda envelope: feed.end(watch.error) if envelope is None else feed.push(envelope))
        if watch.over:
            feed.end(watch.error)
        try:
            while True:
                try:
                    envelope = await feed.take()
                except StopAsyncIteration:
                    return
                yield self._payloads.unpack(envelope)
        finally:
            stop()

    def on_progress(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call a plain function on the loop with each progress from now on. Its exceptions are logged.

        A handle that was made for an id hears of progress only once its `result` or `watch` is awaited.

        Returns:
            A function that ends this.

        Raises:
            ConfigError: It is no function.
        """
        check_function("callback", callback, "a callback is a plain function of one argument, the progress")
        loop = asyncio.get_running_loop()

        def call(envelope: Envelope) -> None:
            try:
                callback(self._payloads.unpack(envelope))
            except (Exception, asyncio.CancelledError):  # noqa: BLE001  # a callback may raise anything
                _log.exception("a callback for the progress of task %s failed", self.id)

        return self._watch.listen(lambda envelope: envelope is not None and loop.call_soon(call, envelope))

    async def state(self) -> TaskState:
        """Return the place of the task: ready, delayed, taken, done (with any outcome but dead), dead.

        Raises:
            UnknownTask, ResultExpired: As for `result`.
            Unsupported: The engine has live results alone, and this handle knows of no outcome yet.
        """
        if self._watch.ending is not None:
            return "dead" if self._watch.ending.kind is OutcomeKind.DEAD else "done"
        return (await self._engine.lookup(self.id)).state

    async def cancel(self) -> Literal["withdrawn", "asked", "too late"]:
        """Cancel the task. Once this returns it is not begun any more.

        Returns:
            "withdrawn": it was not begun, and never will be. "asked": its worker is asked to stop; a result that comes first
            counts. "too late": it had ended.

        Raises:
            UnknownTask: There was none with this id.
            Unsupported: The engine cannot cancel.
        """
        self._engine.capabilities.require("cancel", "cancelling a task")
        return await self._engine.cancel(self.id)
