"""Tasks as handlers receive them, and claims, which `Tasks.next` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from redpoll.bus.awaitables import FALSE
from redpoll.bus.engine import Delivery, Hold
from redpoll.bus.envelope import OutcomeKind, Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.tasks.ending import LEAVING, Ending, Requeue, Way, check_delay, failed, settle, tries_of
from redpoll.bus.tasks.handle import error_of
from redpoll.errors import DeadLettered, TaskRejected

__all__ = ["Claim", "Task"]

_UNREAD: Final = object()
_BACK: Final = Ending(Way.REQUEUE)
_NONE_ALLOWED: Final = AllowedExceptions(builtins=False)


class Task:
    """A task that is being worked on. It can be used in the thread or process in which its handler runs."""

    __slots__ = ("__weakref__", "_data", "_hold", "_payloads", "_results")

    def __init__(self, hold: Hold, payloads: Payloads) -> None:
        self._hold = hold
        self._payloads = payloads
        self._data: Any = _UNREAD
        self._results: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, attempt {self.attempt}>"

    @property
    def data(self) -> Any:
        """The submitted data.

        Raises:
            BadPayload: This side has not the serializer that wrote it, or that cannot read it.
        """
        if self._data is _UNREAD:
            self._data = self._payloads.unpack(self._hold.envelope)
        return self._data

    @property
    def results(self) -> list[Any]:
        """The results of the tasks that it came after, in their order; none of a task that is no part of a chain.

        Where the outcomes of a group are collected, an exception is in the place of each that failed.

        Raises:
            BadPayload: One cannot be read here.
        """
        if self._results is None:
            self._results = [
                error_of(outcome, task, _NONE_ALLOWED)
                if outcome.kind is not OutcomeKind.RESULT
                else None
                if outcome.envelope is None
                else self._payloads.unpack(outcome.envelope)
                for task, outcome in self._hold.inputs
            ]
        return self._results

    @property
    def id(self) -> str:
        """Its id."""
        return self._hold.id

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""
        return self._hold.queue

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers of its submitter."""
        return self._hold.envelope.headers or {}

    @property
    def attempt(self) -> int:
        """1, and one more for each worker that was lost with it."""
        return self._hold.attempt

    @property
    def tries(self) -> int:
        """1, and one more for each try that failed and that a `Retry` follows."""
        return tries_of(self._hold.envelope) + 1

    @property
    def left(self) -> float | None:
        """Seconds until its deadline; None if it has none."""
        return self._hold.left

    @property
    def cancelled(self) -> bool:
        """True if the work is not wanted any more: cancelled, or past its deadline. A coroutine is cancelled besides."""
        return self._hold.cancelled

    @property
    def lost(self) -> bool:
        """True if it is not this worker's any more: its result is refused, and another worker may begin it."""
        return self._hold.lost

    def progress(self, value: Any) -> bool:
        """Send progress to the watchers; it is not stored, and this does not wait.

        From a thread or a process, the oldest is dropped where 1,000 wait for the loop.

        Returns:
            False if there are no watchers, as far as it is known here.

        Raises:
            EncodeError: The serializer cannot carry the value.
            PayloadTooLarge: It is over the limit of the engine.
        """
        return self._hold.progress(self._payloads.pack(value))


class Claim(Task):
    """A task that was taken by `Tasks.next`: no other worker has it until it gets its outcome or goes back.

    As a context manager: an exception in the block is its outcome, and is raised further; `Requeue`, `TaskRejected` and
    `DeadLettered` do what they do in a handler, and end there. A block that leaves it without an outcome, also by being
    cancelled, gives it back. A claim that is dropped goes back when it is garbage-collected. Its first outcome counts.
    """

    __slots__ = ("_ended", "_loop")

    def __init__(self, delivery: Delivery, payloads: Payloads) -> None:
        super().__init__(delivery, payloads)
        self._loop = asyncio.get_running_loop()
        self._ended: Awaitable[bool] | None = None

    @property
    def done(self) -> bool:
        """True if it has its outcome, or was given back."""
        return self._ended is not None

    def set_result(self, value: Any) -> None:
        """End it with a result.

        Raises:
            EncodeError: The serializer cannot carry the value; the task is still held.
        """
        self._end(Ending(Way.RESULT, None if value is None else self._payloads.pack(value)))

    def set_exception(self, error: BaseException) -> None:
        """End it with an error, which its submitter gets as a `RemoteError`."""
        self._end(failed(error))

    def requeue(self, delay: float = 0.0, reason: str = "") -> None:
        """Give it back, without blame.

        Args:
            delay: Seconds before it is handed out again.
            reason: For its history.

        Raises:
            ConfigError: The delay cannot be; the task is still held.
        """
        check_delay(delay)
        self._end(Ending(Way.REQUEUE, None, reason, delay))

    def reject(self, reason: str = "") -> None:
        """Offer it to others first."""
        self._end(Ending(Way.REJECT, None, reason))

    def dead_letter(self, reason: str) -> None:
        """Give it up: it is among the dead letters of its queue."""
        self._end(Ending(Way.DEAD, None, reason))

    async def confirmed(self) -> bool:
        """Wait until its outcome is recorded, or it is back in its queue. Leaving the block waits as well.

        Returns:
            False: the task was lost, or had ended before; or there is no outcome to wait for.
        """
        ended = self._ended
        if ended is None:
            return False
        self._ended = FALSE
        return await ended

    def _end(self, ending: Ending) -> None:
        if self._ended is None:
            delivery: Any = self._hold
            self._ended = settle(delivery, ending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        ending = _BACK if error is None or isinstance(error, LEAVING) else failed(error)
        # Cancelled is the block, not the task.
        self._end(_BACK if ending.way is Way.CANCELLED else ending)
        await self.confirmed()
        return isinstance(error, Requeue | TaskRejected | DeadLettered)

    def __del__(self) -> None:
        # Perhaps in another thread, and when the loop is gone.
        if getattr(self, "_ended", FALSE) is None:
            delivery: Any = self._hold
            try:
                self._loop.call_soon_threadsafe(delivery.reject)
            except RuntimeError:
                pass
