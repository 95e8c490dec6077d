"""The future that `send` and `request` return, the core's `Outgoing` at the same time: one object a message."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from redpoll.errors import UsageError
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import OUTGOING_FIELDS, Outgoing

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.wire.peer import Peer

__all__ = ["UNSET", "Queued", "Sending", "Unset", "check_acknowledge", "check_retry", "check_seconds", "dials_once"]


class Unset(Enum):
    """The type of a timeout that was not given: `Config.timeout` then holds, whereas None means no limit."""

    UNSET = "the one of the Config"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET

_YEAR = 31_536_000.0

# What a sending that is done has for a message.
_GONE: Any = None


def check_seconds(value: object, name: str = "timeout") -> None:
    """Refuse what is no time that a call may have.

    Raises:
        UsageError: It is not a number from 0 to a year.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is a number of seconds or None, not {type(value).__name__}")
    if not 0 <= value <= _YEAR:
        raise UsageError(f"{name}={value} is not from 0 to {_YEAR:.0f} seconds", "None is no limit")


def check_retry(value: object) -> None:
    """Refuse what is no number of times to send again.

    Raises:
        UsageError: It is not an int from 0.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"retry is an int, not {type(value).__name__}")
    if value < 0:
        raise UsageError(f"retry={value} is below 0")


def check_acknowledge(value: object) -> None:
    """Refuse what is no mode.

    Raises:
        UsageError: It is neither a bool nor None.
    """
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"acknowledge is True, False or None, not {type(value).__name__}")


def dials_once(value: object) -> bool:
    """Whether to fail with the first dialling that fails.

    Raises:
        UsageError: It is neither "retry" nor "once".
    """
    if value not in {"once", "retry"}:
        raise UsageError(f"dial is 'retry', 'once' or None, not {value!r}")
    return value == "once"


class Queued(Outgoing):
    """A sending that knows whom it is for: what the queues of a node's peers hold."""

    if not TYPE_CHECKING:  # as Outgoing
        __slots__ = ()

    peer: Peer

    @property
    def _owner(self) -> Peers:
        return self.peer.owner  # type: ignore[return-value]


class Sending(asyncio.Future[Any], Queued):
    """How one sending ends: None for a send, the answer for a request, or an error.

    Cancelling it (or the task that awaits it) withdraws the message: one that is still queued is not sent.
    """

    __slots__ = (*OUTGOING_FIELDS, "peer")

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Finish the future."""
        if self.done():
            return
        if error is None:
            if answer is not None and not self._owner.raw:
                try:
                    self._owner.ends.decode(answer)
                except Exception as problem:  # noqa: BLE001  # a serializer may be anybody's
                    self.set_exception(problem)
                    return
            # What it refers to may be large, and the core still knows it for a while.
            self.body = self.header = b""
            self.message = _GONE
            self.set_result(answer)
        else:
            self.set_exception(error)

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the message and cancel the future."""
        if self.done():
            return False
        self.peer.withdraw(self, self.get_loop().time(), hard=self.hard)
        return super().cancel(msg)

    def __del__(self) -> None:
        if self._log_traceback:
            # Nobody looked at the error: that is for the hook and the counters, not for the loop's log.
            self._log_traceback = False
            self._owner.unheard(self)
