"""Sending: the future of `send` and `request`, the way to a peer, and the timers of what is late.

The future is also the core's `Outgoing`: one object per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from redpoll.errors import UsageError
from redpoll.wire.frames import REQ_ACK, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import OUTGOING_FIELDS, Outgoing

if TYPE_CHECKING:
    from redpoll.message import Message
    from redpoll.wire.peer import Peer

__all__ = [
    "ACKNOWLEDGED",
    "REQUEST",
    "UNSET",
    "FailedSending",
    "Queued",
    "Sending",
    "Timers",
    "Unset",
    "check_options",
    "check_seconds",
    "dials_once",
    "read_answer",
    "submit",
]


class Unset(Enum):
    """The type of a timeout that was not given: `Config.timeout` then holds, whereas None means no limit."""

    UNSET = "the one of the Config"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET

#: The kinds of a message that is to be acknowledged, and of one that is to be answered.
ACKNOWLEDGED = int(REQ_ACK)
REQUEST = REQ_ACK | WANTED

_YEAR = 31_536_000.0

#: Time in seconds: if a timer fires this late, this process was busy, and what it waits for may have arrived unread.
_LATE = 0.05

# The message of a finished sending.
_GONE: Any = None


def check_seconds(value: object, name: str = "timeout") -> None:
    """Validate a timeout; None is no limit.

    Raises:
        UsageError: It is neither None nor a number from 0 to a year.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if not 0 <= value <= _YEAR:
        raise UsageError(f"{name}={value} is out of range: 0 to {_YEAR:.0f} seconds", "None is no limit")


def check_options(acknowledge: object, retry: object) -> None:
    """Validate a mode and a number of retries.

    Raises:
        UsageError: `acknowledge` is neither a bool nor None, or `retry` is not an int of at least 0.
    """
    if acknowledge is not None and not isinstance(acknowledge, bool):
        raise UsageError(f"acknowledge must be True, False or None, not {type(acknowledge).__name__}")
    if isinstance(retry, bool) or not isinstance(retry, int):
        raise UsageError(f"retry must be an int, not {type(retry).__name__}")
    if retry < 0:
        raise UsageError(f"retry={retry} is negative")


def dials_once(value: object) -> bool:
    """Return True for "once": fail when the first attempt to dial fails.

    Raises:
        UsageError: It is neither "retry" nor "once".
    """
    if value not in {"once", "retry"}:
        raise UsageError(f"dial must be 'retry', 'once' or None, not {value!r}")
    return value == "once"


class _Owner(Protocol):
    """The peers of a node, as they learn of the end of a sending."""

    raw: bool
    #: Replaces an answer's bytes by the value that the serializer makes of them.
    decode: Callable[[Inbound[Any]], None]
    #: Reports a failed sending whose future was dropped; called in any thread.
    unawaited: Callable[[Message[Any], BaseException], None]


class Queued(Outgoing):
    """A sending that knows its peer, as held by the queues of a node's peers."""

    if not TYPE_CHECKING:  # as Outgoing
        __slots__ = ()

    peer: Peer

    @property
    def _owner(self) -> _Owner:
        return self.peer.owner  # type: ignore[return-value]


class Sending(asyncio.Future[Any], Queued):
    """The outcome of one sending: None for a send, the answer for a request, or an error.

    Cancelling it (or the task that awaits it) withdraws the message: if it is still queued, it is not sent.
    """

    __slots__ = (*OUTGOING_FIELDS, "peer")

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Finish the future."""
        if self.done():
            return
        if error is None:
            if answer is not None and not self._owner.raw and not read_answer(self, answer):
                return
            # The body may be large, and the core still refers to this object for a while.
            self.body = self.header = b""
            self.message = _GONE
            self.set_result(answer)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.__class__ = FailedSending
        self.set_exception(error)

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the message and cancel the future."""
        if self.done():
            return False
        self.peer.withdraw(self, self.get_loop().time(), hard=self.hard)
        return super().cancel(msg)


def read_answer(out: Queued, answer: Inbound[Any]) -> bool:
    """Decode an answer; fail its sending, and return False, if the serializer raises."""
    try:
        out._owner.decode(answer)
    except (SystemExit, KeyboardInterrupt) as problem:
        out.settle(None, problem)
        raise
    except BaseException as problem:  # noqa: BLE001  # a serializer may be anybody's
        out.settle(None, _carried(problem))
        return False
    return True


def _carried(error: BaseException) -> BaseException:
    """Return an exception of a serializer; where it would end the coroutine that awaits it in another way, its stand-in."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    carried = RuntimeError(f"the serializer raised {type(error).__name__}")
    carried.__cause__ = error
    return carried


class FailedSending(Sending):
    """A failed sending. A sending changes its class when it fails, so that a successful one needs no finalizer."""

    __slots__ = ()

    def __del__(self) -> None:
        if self._log_traceback:
            # Nothing retrieved the error: report it to the hook and the node's log, not to the loop's.
            self._log_traceback = False
            error = self._exception
            if error is not None:
                self._owner.unawaited(self.message, error)


def submit(out: Queued, peer: Peer, now: float, at_once: bool = False) -> None:
    """Send a prepared sending to a peer: the way of sends, requests, and the records of layers.

    Three others are shorter: runs of small messages (`wire.runs`) have no sending; `Requeue` moves sendings between the
    queues of peers; a layer's piece that goes `first` is put before a queue.

    Args:
        out: The sending, which is settled at once if it fails at a bound.
        peer: The peer.
        now: The time.
        at_once: Whether it is written without waiting for others of this turn.
    """
    out.peer = peer
    peer.submit(out, now)
    link = peer.link
    if link is None:
        return
    if at_once:
        link.connection.flush()
    else:
        link.connection.submitted()


class Timers:
    """The timers of one node's peers.

    Args:
        loop: The event loop of the node.
        forget_if_idle: Forgets a peer that nothing is kept for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        forget_if_idle: Callable[[Peer], object],
    ) -> None:
        self._loop = loop
        self._forget_if_idle = forget_if_idle
        self._timers: dict[Peer, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def arm(self, peer: Peer, deadline: float) -> None:
        """Set the timer of a peer."""
        timer = self._timers.get(peer)
        if timer is not None:
            timer.cancel()
        peer.armed = deadline
        self._timers[peer] = self._loop.call_at(deadline, self._fire, peer, False)

    def _fire(self, peer: Peer, waited: bool) -> None:
        now = self._loop.time()
        if not waited and peer.armed is not None and now - peer.armed > _LATE:
            # The timer fired late: read what arrived meanwhile before anything expires.
            self._timers[peer] = self._loop.call_later(_LATE / 5, self._fire, peer, True)
            return
        peer.armed = None
        for link in peer.links:
            link.connection.backpressure.note_progress(now)
        following = peer.expire(now)
        if following is not None:
            self.arm(peer, following)
        if peer.queue:
            peer.pump(now)
        peer.wake_links()
        if not peer.links:
            self._forget_if_idle(peer)

    def forget(self, peer: Peer) -> None:
        """Cancel the timer of a forgotten peer."""
        timer = self._timers.pop(peer, None)
        if timer is not None:
            timer.cancel()
        # The peer may return, with a send that has a deadline.
        peer.armed = None

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
