"""Endings of tasks as plain values: made by the handler's thread or process, carried out on the engine's loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable
from enum import Enum
from typing import Any, Final, NamedTuple

from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads, printable
from redpoll.bus.failures import pack_failure
from redpoll.bus.tasks.retry import Retry
from redpoll.checks import duration, require
from redpoll.errors import DeadLettered, EncodeError, PayloadTooLarge, ResultTooLarge, TaskRejected

__all__ = [
    "LEAVING",
    "NOTHING",
    "TRIES",
    "Died",
    "Ending",
    "Requeue",
    "Unfit",
    "Way",
    "check_delay",
    "failed",
    "returned",
    "settle",
    "tries_of",
]

TRIES: Final = "tries"
"""The key of `Envelope.meta` for the number of failed tries."""

_UNFIT: Final = "unfit"
"""The key of `Envelope.meta` for the marks of the workers that could not read the task."""

#: Workers that may find a task unfit before it becomes a dead letter even if there are more of them.
_READERS: Final = 100

LEAVING: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""On the loop, and in a block, these end the worker and say nothing about the task. Elsewhere they end the handler alone."""

_CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)


class Requeue(Exception):  # noqa: N818  # it asks for something, and is no error
    """Raised by a handler to give its task back, without blame: ``raise Requeue(delay=5)``.

    Args:
        delay: Seconds before it is handed out again.
        reason: For its history.

    Raises:
        ConfigError: The delay cannot be.
    """

    # A subclass need not call the constructor.
    delay: float = 0.0
    reason: str = ""

    def __init__(self, delay: float = 0.0, reason: str = "") -> None:
        check_delay(delay)
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason


class Died(Exception):  # noqa: N818  # as above
    """Raised for a task whose process died: an attempt that failed."""


class Unfit(Exception):  # noqa: N818  # as above
    """Raised for a task that this worker cannot read: offered once to each other worker, then a dead letter.

    Args:
        reason: For its history.
        mark: The worker: a text that no other one has.
    """

    def __init__(self, reason: str, mark: str) -> None:
        super().__init__(reason, mark)
        self.reason = reason
        self.mark = mark


def check_delay(delay: float) -> None:
    """Check the seconds before a task is handed out again.

    Raises:
        ConfigError: They cannot be.
    """
    require("delay", delay, duration)


class Way(Enum):
    """The ways in which the work on a task ends."""

    RESULT = "result"
    ERROR = "error"
    CANCELLED = "cancelled"
    #: It goes back, and anybody may have it.
    REQUEUE = "requeue"
    #: It goes to another worker, as long as there is one that did not reject it.
    REJECT = "reject"
    #: The same, and a dead letter when it comes to a worker that could not read it before.
    UNFIT = "unfit"
    #: It becomes a dead letter.
    DEAD = "dead"
    #: It goes back, and this was an attempt that failed.
    DIED = "died"


#: Looked up once: these are on the way of every task.
_RESULT: Final = Way.RESULT
_RESULT_KIND: Final = OutcomeKind.RESULT
_new: Final = tuple.__new__


class Ending(NamedTuple):
    """The end of the work on a task.

    Attributes:
        way: The way in which it ended.
        envelope: The result, or the error.
        reason: The reason, for its history.
        delay: Seconds before it is handed out again.
        again: True if the retry policy covers it.
        mark: The worker that could not read it.
    """

    way: Way
    envelope: Envelope | None = None
    reason: str = ""
    delay: float = 0.0
    again: bool = False
    mark: str = ""


NOTHING: Final = Ending(Way.RESULT)
"""The ending of work that returned None."""


def returned(value: Any, payloads: Payloads) -> Ending:
    """Return the ending of work that gave a result."""
    if value is None:
        return NOTHING
    try:
        return _new(Ending, (_RESULT, payloads.pack(value), "", 0.0, False, ""))
    except EncodeError as error:
        return Ending(Way.ERROR, pack_failure(error), str(error))
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        return failed(error)


def failed(error: BaseException, retry: Retry | None = None) -> Ending:
    """Return the ending of work that raised. This never raises, or the task would seem done."""
    try:
        return _failed(error, retry)
    except Exception as problem:  # noqa: BLE001  # an exception's own methods may raise anything
        told = RuntimeError(f"its handler raised {type(error).__name__}, which cannot be sent: {printable(problem)}")
        return Ending(Way.ERROR, pack_failure(told), str(told)[:200])


def _failed(error: BaseException, retry: Retry | None) -> Ending:
    match error:
        case Requeue():
            check_delay(error.delay)
            return Ending(Way.REQUEUE, None, str(error.reason), error.delay)
        case TaskRejected():
            return Ending(Way.REJECT, None, str(error.reason))
        case Died():
            return Ending(Way.DIED, None, str(error))
        case Unfit():
            return Ending(Way.UNFIT, None, error.reason, mark=error.mark)
        case DeadLettered(outcome=False):
            return Ending(Way.DEAD, None, str(error.reason) or "given up by its handler")
    if isinstance(error, _CANCELLED):
        return Ending(Way.CANCELLED, None, str(error) or "cancelled by its handler")
    again = retry is not None and retry.covers(error)
    return Ending(Way.ERROR, pack_failure(error), f"{type(error).__name__}: {printable(error)}"[:200], again=again)


def tries_of(envelope: Envelope) -> int:
    """Return the number of failed tries of a task."""
    tries = envelope.meta.get(TRIES, 0) if envelope.meta else 0
    return tries if type(tries) is int else 0


def settle(delivery: Delivery, ending: Ending, retry: Retry | None = None, *, blame: bool = False) -> Awaitable[bool]:
    """Carry an ending out.

    Args:
        delivery: The task.
        ending: The ending.
        retry: The policy, for an error that it covers.
        blame: Count another try as a failed attempt too.

    Returns:
        The result of `Delivery.ack` or `Delivery.reject`.
    """
    way, envelope, reason, delay, again, mark = ending
    if way is _RESULT:
        try:
            return delivery.ack(None if envelope is None else _new(Outcome, (_RESULT_KIND, envelope, "")))
        except ResultTooLarge as error:
            envelope, reason = pack_failure(error), f"ResultTooLarge: {error}"
            way = Way.ERROR
    if way is Way.ERROR:
        if again and retry is not None:
            tries = tries_of(delivery.envelope) + 1
            reason = f"try {tries} failed: {reason}"
            # Nobody has to know how often it was tried before it was redriven.
            meta = {**(delivery.envelope.meta or {}), TRIES: tries if tries <= retry.times else 0}
            if tries <= retry.times:
                return delivery.reject(delay=retry.pause(tries), blame=blame, reason=reason, meta=meta)
            if retry.dead_letter:
                return delivery.reject(requeue=False, reason=reason, meta=meta)
        if envelope is None:
            return delivery.ack(Outcome(OutcomeKind.TIME_LIMIT, None, reason))
        try:
            # In words too, for the tasks that come after it.
            return delivery.ack(Outcome(OutcomeKind.ERROR, envelope, reason))
        except PayloadTooLarge:
            return delivery.ack(Outcome(OutcomeKind.ERROR, None, reason))
    if way is Way.CANCELLED:
        return delivery.ack(Outcome(OutcomeKind.CANCELLED, None, reason))
    if way is Way.DEAD:
        return delivery.reject(requeue=False, reason=reason)
    if way is Way.UNFIT:
        known = dict(delivery.envelope.meta or {})
        marks = known.pop(_UNFIT, ())
        if mark in marks or len(marks) >= _READERS:
            # Every connected worker rejected it, or it would not have come again.
            return delivery.reject(requeue=False, reason=reason, meta=known)
        return delivery.reject(exclude=True, reason=reason, meta={**known, _UNFIT: [*marks, mark]})
    return delivery.reject(delay=delay, exclude=way is Way.REJECT, blame=way is Way.DIED, reason=reason)
